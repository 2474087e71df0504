// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// conclave quantize: the sample in codes is as near to the original as its format allows, and nothing half-written is
// left behind. What the files hold is read back by read_back.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/run_command.hpp"
#include "cli/sample.hpp"
#include "conclave/quantise.hpp"

namespace conclave {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class QuantizeKey : public testing::TestWithParam<const char*> {};

TEST_P(QuantizeKey, TheSampleStaysWithinTheFormatsBoundAndIsNotTheOriginal) {
  const std::string key = GetParam();
  const TemporaryFolder folder;
  const CommandResult made =
      run_command({"quantize", sample_folder(), "--weights", key, "--output", folder / "out", "--json"});
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_EQ(made.json()["blocks"], 4);
  EXPECT_LT(made.json()["bytes_after"], made.json()["bytes_before"]);
  const CommandResult r = run_command({"check", folder / "out", "--expected", sample_io(), "--dtype", "f32", "--json"});
  EXPECT_EQ(r.status, 0) << r.err << r.out;
  const double bound = error_bound(quant_key_from_name(key));
  const auto report = r.json();
  ASSERT_EQ(report["rows"].size(), 4U);
  for (const auto& row : report["rows"]) {
    EXPECT_EQ(row["different_ids"], 0);
    EXPECT_LT(row["relative_error"], bound);
    EXPECT_GT(row["relative_error"], bound / 10);
  }
  // Fast parts compute with the codes; where blocks of 128 do not fill gate and up, inspect says what happens instead.
  const auto inspected = run_command({"inspect", folder / "out", "--json"}).json();
  EXPECT_EQ(inspected["blocks"][0]["quant"]["weights"], key == "fp8_block128" ? "none" : key);
  EXPECT_EQ(inspected["blocks"][0]["stored_key"], key);
  EXPECT_THAT(inspected["blocks"][0]["decoded_because"].get<std::string>(),
              HasSubstr(key == "fp8_block128" ? "intermediate_size 96" : ""));
}

INSTANTIATE_TEST_SUITE_P(Keys, QuantizeKey,
                         testing::Values("fp8_block128", "int8_channel", "int4_group32", "mxfp4", "nvfp4"),
                         [](const auto& test) { return std::string(test.param); });

TEST(Quantize, MatricesOfZeroExpertsStayWhatTheyAre) {
  const TemporaryFolder folder;
  const std::string model = CONCLAVE_SOURCE_DIR "/tests/data/families/longcat_flash";
  ASSERT_EQ(run_command({"quantize", model, "--weights", "fp8_channel", "--output", folder / "out"}).status, 0);
  EXPECT_EQ(run_command({"check", folder / "out", "--expected", model + "/io.safetensors"}).status, 0);
}

class QuantizeRefuses : public testing::Test {
 protected:
  void expect_refused(const std::string& model, const std::string& key, const std::vector<std::string>& words) {
    expect_bad_input(run_command({"quantize", model, "--weights", key, "--output", folder_ / "out"}), words);
    EXPECT_TRUE(fs::is_empty(folder_.path()));
  }
  TemporaryFolder folder_;
};

TEST_F(QuantizeRefuses, WhatCannotBeWritten) {
  const std::string formats = CONCLAVE_SOURCE_DIR "/tests/data/formats/";
  expect_refused(sample_folder(), "int4_group128", {"int4_group128", "160", "128"});
  expect_refused(sample_folder(), "fp8_token", {"fp8_token", "nvfp4"});
  expect_refused(sample_folder(), "int5", {"int5", "int4_group32"});
  expect_refused(formats + "ct_nvfp4", "mxfp4", {"ct_nvfp4", "nvfp4-pack-quantized", "bf16"});
  expect_refused(formats + "gguf_f16/model.gguf", "mxfp4", {"GGUF", "config.json"});
  expect_refused(CONCLAVE_SOURCE_DIR "/tests/data/families/gpt_oss", "mxfp4", {"gpt_oss", "one tensor"});
}

TEST_F(QuantizeRefuses, AFolderThatHoldsSomething) {
  std::ofstream(folder_ / "mine") << "keep me";
  const CommandResult r = run_command({"quantize", sample_folder(), "--weights", "mxfp4", "--output", folder_.path()});
  expect_bad_input(r, {folder_.path(), "empty folder"});
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 1);
}

}  // namespace
}  // namespace conclave
