// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// conclave run: what it writes is what check accepts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/run_command.hpp"
#include "cli/sample.hpp"
#include "conclave/verify.hpp"

namespace conclave {
namespace {

TEST(RunCommand, WritesOutputsIdsAndWeights) {
  const TemporaryFolder folder;
  const std::string out = folder / "out.safetensors";
  const CommandResult r =
      run_command({"run", sample_folder(), "--input", sample_io(), "--output", out, "--dtype", "f32", "--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.json()["blocks"].size(), 4U);
  const SafetensorsFile written(out), expected(sample_io());
  EXPECT_EQ(written.tensors().size(), 12U);
  for (int layer = 0; layer < 4; ++layer) {
    const std::string block = "model.layers." + std::to_string(layer) + ".mlp";
    EXPECT_EQ(written.get(block + ".output").dtype, DType::f32);
    EXPECT_LT(relative_error(written.get(block + ".output"), expected.get(block + ".output")), 1e-5);
    EXPECT_LT(relative_error(written.get(block + ".topk_weights"), expected.get(block + ".router_out1")), 1e-5);
    const ConstTensorView ids = written.get(block + ".topk_ids"), wanted = expected.get(block + ".router_out2");
    for (std::int64_t i = 0; i < ids.numel(); ++i) ASSERT_EQ(ids.as<std::int32_t>()[i], wanted.as<std::int64_t>()[i]);
  }
}

TEST(RunCommand, OneBlockInTheCheckpointsType) {
  const TemporaryFolder folder;
  const std::string out = folder / "out.safetensors";
  const CommandResult r =
      run_command({"run", sample_folder(), "--input", sample_io(), "--output", out, "--block", "model.layers.1.mlp"});
  ASSERT_EQ(r.status, 0) << r.err;
  const SafetensorsFile written(out);
  EXPECT_EQ(written.tensors().size(), 3U);
  EXPECT_EQ(written.get("model.layers.1.mlp.output").dtype, DType::bf16);
}

TEST(RunCommand, BadInputWritesNothing) {
  const TemporaryFolder folder;
  const std::string out = folder / "out.safetensors";
  expect_bad_input(run_command({"run", sample_folder(), "--input", sample_io(), "--output", out, "--experts", "best"}),
                   {"best"});
  expect_bad_input(run_command({"run", sample_folder(), "--input", sample_io(), "--output", out, "--block", "lm_head"}),
                   {"lm_head"});
  EXPECT_FALSE(std::filesystem::exists(out));
  std::filesystem::copy(sample_io(), folder / "io.safetensors");
  expect_bad_input(run_command({"run", sample_folder(), "--input", folder / "io.safetensors", "--output",
                                folder / "io.safetensors"}),
                   {"io.safetensors", "input"});
  expect_bad_input(run_command({"run", sample_folder(), "--input", sample_io(), "--output", "/nonexistent/folder/out"}),
                   {"/nonexistent/folder/out"});
}

}  // namespace
}  // namespace conclave
