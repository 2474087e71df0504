// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// conclave check: the sample checkpoint is right, and what is not is said: values, ids, files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/run_command.hpp"
#include "cli/sample.hpp"
#include "conclave/registry.hpp"

namespace conclave {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

bool keep(const NamedTensor&, std::span<std::byte>) {
  return true;
}

TEST(CheckCommand, TheSampleIsRightInEveryKernel) {
  const CommandResult r =
      run_command({"check", sample_folder(), "--expected", sample_io(), "--experts", "all", "--json"});
  EXPECT_EQ(r.status, 0) << r.err << r.out;
  const auto json = r.json();
  std::set<std::string> blocks, dtypes, experts;
  for (const auto& row : json["rows"]) {
    blocks.insert(row["block"]);
    dtypes.insert(row["dtype"]);
    experts.insert(row["experts"]);
    EXPECT_EQ(row["different_ids"], 0);
    EXPECT_LT(row["relative_error"], row["dtype"] == "f32" ? 1e-5 : 6e-3);
  }
  EXPECT_EQ(blocks.size(), 4U);
  EXPECT_EQ(dtypes, (std::set<std::string>{"bf16", "f32"}));
  for (const auto& refusal : json["refusals"]) {
    experts.insert(refusal["experts"]);
    EXPECT_NE(refusal["reason"], "");
  }
  EXPECT_EQ(experts.size(), builtin_registry().experts.entries().size()) << "every part has a row or a reason";
}

TEST(CheckCommand, TheDefaultIsOneKernelForEachTypeOnAnyNumberOfThreads) {
  const CommandResult r =
      run_command({"check", sample_folder(), "--expected", sample_io(), "--block", kSampleBlock, "--threads", "3"});
  EXPECT_EQ(r.status, 0) << r.err << r.out;
  EXPECT_THAT(r.out, HasSubstr("2 of 2 within tolerance"));
  EXPECT_THAT(r.out, HasSubstr("exact"));
}

TEST(CheckCommand, F16) {
  const CommandResult r =
      run_command({"check", sample_folder(), "--expected", sample_io(), "--dtype", "f16", "--json"});
  EXPECT_EQ(r.status, 0) << r.err << r.out;
  EXPECT_EQ(r.json()["rows"].size(), 4U);
}

TEST(CheckCommand, AWrongOutputFails) {
  const TemporaryFolder folder;
  const std::string name = std::string(kSampleBlock) + ".output";
  copy_altered(sample_io(), folder / "io.safetensors", [&](const NamedTensor& tensor, std::span<std::byte> bytes) {
    if (tensor.name == name) {
      float value = 0;
      std::memcpy(&value, bytes.data() + 4000, sizeof value);
      value += 1.0F;
      std::memcpy(bytes.data() + 4000, &value, sizeof value);
    }
    return true;
  });
  const CommandResult r =
      run_command({"check", sample_folder(), "--expected", folder / "io.safetensors", "--dtype", "f32", "--json"});
  EXPECT_EQ(r.status, 1) << r.err;
  int wrong = 0;
  const auto json = r.json();  // Named: a range over part of a temporary would outlive it.
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row["ok"], row["block"] != kSampleBlock);
    wrong += row["ok"].get<bool>() ? 0 : 1;
  }
  EXPECT_EQ(wrong, 1);
  // Every element may be off by more than that: a tolerance of the user's own decides.
  EXPECT_EQ(run_command({"check", sample_folder(), "--expected", folder / "io.safetensors", "--atol", "2"}).status, 0);
  EXPECT_EQ(run_command({"check", sample_folder(), "--expected", sample_io(), "--atol", "1e-12"}).status, 1);
}

TEST(CheckCommand, AWrongIdFails) {
  const TemporaryFolder folder;
  const std::string name = std::string(kSampleBlock) + ".router_out2";
  copy_altered(sample_io(), folder / "io.safetensors", [&](const NamedTensor& tensor, std::span<std::byte> bytes) {
    if (tensor.name == name) bytes[8] ^= std::byte{1};
    return true;
  });
  const CommandResult r = run_command(
      {"check", sample_folder(), "--expected", folder / "io.safetensors", "--block", kSampleBlock, "--json"});
  EXPECT_EQ(r.status, 1) << r.err;
  const auto report = r.json();
  for (const auto& row : report["rows"]) EXPECT_EQ(row["different_ids"], 1);
}

TEST(CheckCommand, WithoutIdsAndWithMissingBlocks) {
  const TemporaryFolder folder;
  const std::string block = "model.layers.2.mlp";
  copy_altered(sample_io(), folder / "io.safetensors", [&](const NamedTensor& tensor, std::span<std::byte>) {
    return tensor.name == block + ".input" || tensor.name == block + ".output";
  });
  const CommandResult r = run_command({"check", sample_folder(), "--expected", folder / "io.safetensors", "--json"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.json()["skipped_blocks"].size(), 3U);
  const auto report = r.json();
  for (const auto& row : report["rows"]) {
    EXPECT_EQ(row["block"], block);
    EXPECT_TRUE(row["different_ids"].is_null());
  }
  expect_bad_input(
      run_command({"check", sample_folder(), "--expected", folder / "io.safetensors", "--block", kSampleBlock}),
      {"io.safetensors", std::string(kSampleBlock) + ".input"});
}

TEST(CheckCommand, InputsOfOtherTypesAndShapes) {
  // f64 of shape [1, M, H] must give what f32 of shape [M, H] gives.
  const TemporaryFolder folder;
  const SafetensorsFile file(sample_io());
  const ConstTensorView input = file.get(std::string(kSampleBlock) + ".input");
  const Tensor wide(DType::f64, {1, input.size(0), input.size(1)});
  for (std::int64_t i = 0; i < input.numel(); ++i) wide.as<double>()[i] = input.as<float>()[i];
  write_safetensors(folder / "io.safetensors",
                    {{std::string(kSampleBlock) + ".input", wide},
                     {std::string(kSampleBlock) + ".output", file.get(std::string(kSampleBlock) + ".output")}});
  const CommandResult r =
      run_command({"check", sample_folder(), "--expected", folder / "io.safetensors", "--block", kSampleBlock});
  EXPECT_EQ(r.status, 0) << r.err << r.out;
}

class DamagedModel : public testing::Test {
 protected:
  DamagedModel() {
    for (const auto& entry : fs::directory_iterator(sample_folder()))
      fs::copy(entry.path(), folder_.path() + "/" + entry.path().filename().string());
  }
  CommandResult check() { return run_command({"check", folder_.path(), "--expected", sample_io()}); }
  TemporaryFolder folder_;
};

TEST_F(DamagedModel, ACopyIsRight) {
  EXPECT_EQ(check().status, 0);
}

TEST_F(DamagedModel, TruncatedShard) {
  const std::string shard = folder_ / "model-00002-of-00003.safetensors";
  fs::resize_file(shard, fs::file_size(shard) - 100);
  expect_bad_input(check(), {"model-00002-of-00003.safetensors"});
  fs::resize_file(shard, 5);
  expect_bad_input(check(), {"model-00002-of-00003.safetensors"});
}

TEST_F(DamagedModel, MissingShard) {
  fs::remove(folder_ / "model-00003-of-00003.safetensors");
  expect_bad_input(check(), {"model-00003-of-00003.safetensors"});
}

TEST_F(DamagedModel, UnknownArchitecture) {
  std::ofstream(folder_ / "config.json") << R"({"model_type": "quantum_moe", "hidden_size": 160})";
  expect_bad_input(check(), {"config.json", "quantum_moe", "qwen3_moe"});
}

TEST_F(DamagedModel, BrokenConfig) {
  std::ofstream(folder_ / "config.json") << "{";
  expect_bad_input(check(), {"config.json"});
}

TEST(CheckCommand, ABrokenExpectedFile) {
  const TemporaryFolder folder;
  copy_altered(sample_io(), folder / "io.safetensors", keep);
  fs::resize_file(folder / "io.safetensors", fs::file_size(folder / "io.safetensors") - 1);
  expect_bad_input(run_command({"check", sample_folder(), "--expected", folder / "io.safetensors"}),
                   {"io.safetensors"});
  expect_bad_input(run_command({"check", sample_folder(), "--expected", folder / "none"}), {"none"});
}

std::string format_folder(const std::string& name) {
  return std::string(CONCLAVE_SOURCE_DIR "/tests/data/formats/").append(name);
}

class CheckFormat : public testing::TestWithParam<const char*> {};

TEST_P(CheckFormat, AQuantisedCheckpointIsRight) {
  const std::string folder = format_folder(GetParam());
  const CommandResult r =
      run_command({"check", folder, "--expected", folder + "/io.safetensors", "--bound", "dtype", "--json"});
  EXPECT_EQ(r.status, 0) << r.err << r.out;
  const auto json = r.json();
  ASSERT_EQ(json["rows"].size(), 2U);
  for (const auto& row : json["rows"]) EXPECT_EQ(row["different_ids"], 0);
}

// One of each kind: codes that are computed with, of one scale and two, biases, and codes that are decoded.
INSTANTIATE_TEST_SUITE_P(Formats, CheckFormat,
                         testing::Values("deepseek_fp8", "gpt_oss_mxfp4", "ct_int4_group64_zp", "ct_int8_channel",
                                         "modelopt_nvfp4", "awq", "gptq_act_order"),
                         [](const auto& test) { return std::string(test.param); });

TEST(CheckCommand, QuantisedWeightsAreJudgedByTheirFormatUnlessToldOtherwise) {
  const std::string folder = format_folder("ct_int8_channel");
  const std::vector<std::string> check = {"check", folder, "--expected", folder + "/io.safetensors"};
  EXPECT_THAT(run_command(check).out, HasSubstr("2e-02"));
  std::vector<std::string> dtype = check;
  dtype.insert(dtype.end(), {"--bound", "dtype"});
  EXPECT_THAT(run_command(dtype).out, HasSubstr("1e-05"));
  dtype.back() = "none";
  expect_bad_input(run_command(dtype), {"--bound", "none", "format or dtype"});
}

TEST(Inspect, SaysHowWeightsAreStoredAndWhetherTheyAreDecoded) {
  EXPECT_THAT(run_command({"inspect", format_folder("ct_nvfp4")}).out,
              HasSubstr("stored as compressed-tensors nvfp4-pack-quantized, nvfp4"));
  EXPECT_THAT(run_command({"inspect", format_folder("gptq_act_order")}).out,
              HasSubstr("stored as gptq; decoded to f32: desc_act"));
  EXPECT_THAT(run_command({"plan", format_folder("awq")}).out, HasSubstr("weights int4_group32_zp"));
}

TEST(Inspect, TheSample) {
  const CommandResult r = run_command({"inspect", sample_folder(), "--json"});
  EXPECT_EQ(r.status, 0) << r.err;
  const auto json = r.json();
  EXPECT_EQ(json["model_type"], "qwen3_moe");
  ASSERT_EQ(json["blocks"].size(), 4U);
  EXPECT_EQ(json["blocks"][0]["name"], kSampleBlock);
  EXPECT_EQ(json["blocks"][0]["moe"]["intermediate_size"], 96);
  EXPECT_EQ(json["not_understood"].size(), 0U);
  EXPECT_THAT(run_command({"inspect", sample_folder()}).out, HasSubstr(kSampleBlock));
}

}  // namespace
}  // namespace conclave
