// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// conclave replay: what --record wrote passes, what was tampered with does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/run_command.hpp"
#include "cli/sample.hpp"

namespace conclave {
namespace {

using testing::HasSubstr;

class Replay : public testing::Test {
 protected:
  Replay() {
    const CommandResult r = run_command({"check", sample_folder(), "--expected", sample_io(), "--block", kSampleBlock,
                                         "--dtype", "f32", "--record", recorded_});
    EXPECT_EQ(r.status, 0) << r.err;
  }
  std::string with_problem(const std::function<void(nlohmann::json&)>& change) {
    const std::string path = folder_ / "changed.safetensors";
    copy_with_problem(recorded_, path, [&](const std::string& problem) {
      nlohmann::json json = nlohmann::json::parse(problem);
      change(json);
      return json.dump();
    });
    return path;
  }
  TemporaryFolder folder_;
  std::string recorded_ = folder_ / "recorded.safetensors";
};

TEST_F(Replay, ARecordedCheckPassesInEveryPart) {
  const CommandResult r = run_command({"replay", recorded_, "--json"});
  EXPECT_EQ(r.status, 0) << r.err << r.out;
  const auto rows = r.json()["cases"][0]["rows"];
  std::set<std::string> experts, prepares;
  int compared = 0;
  for (const auto& row : rows) {
    experts.insert(row["experts"]);
    prepares.insert(row["prepare_finalize"]);
    if (row["verdict"] != "ok") continue;
    EXPECT_LT(row["expected"]["relative_error"], 1e-5);
    EXPECT_LT(row["reference"]["relative_error"], 1e-5);
    ++compared;
  }
  EXPECT_GE(compared, 3);
  EXPECT_EQ(run_command({"replay", recorded_, "--checked"}).status, 0);
}

TEST_F(Replay, RunAndBenchRecordToo) {
  const std::string a = folder_ / "run.safetensors", b = folder_ / "bench.safetensors";
  ASSERT_EQ(
      run_command({"run", sample_folder(), "--input", sample_io(), "--output", folder_ / "out", "--record", a}).status,
      0);
  ASSERT_EQ(run_command({"bench", "--shape", "12,3,48,40", "--tokens", "7", "--min-time", "0", "--record", b}).status,
            0);
  const CommandResult r = run_command({"replay", a, b});
  EXPECT_EQ(r.status, 0) << r.err << r.out;
  EXPECT_THAT(r.out, HasSubstr("2 of 2 cases ok"));
}

TEST_F(Replay, AWrongExpectedTensorFails) {
  const std::string path = folder_ / "wrong.safetensors";
  copy_altered(recorded_, path, [](const NamedTensor& tensor, std::span<std::byte> bytes) {
    if (tensor.name == "expected") bytes[3] ^= std::byte{0x80};  // the sign of the first element
    return true;
  });
  EXPECT_EQ(run_command({"replay", path}).status, 1);
  copy_altered(recorded_, path, [](const NamedTensor& tensor, std::span<std::byte> bytes) {
    if (tensor.name == "expected_topk_ids") bytes[0] ^= std::byte{1};
    return true;
  });
  const CommandResult r = run_command({"replay", path, recorded_});
  EXPECT_EQ(r.status, 1);
  EXPECT_THAT(r.out, HasSubstr("expected_topk_ids: 1 of"));
  EXPECT_THAT(r.out, HasSubstr("1 of 2 cases ok"));
}

TEST_F(Replay, UnknownFieldsAreErrors) {
  expect_bad_input(run_command({"replay", with_problem([](auto& json) { json["colour"] = "blue"; })}),
                   {"changed", "colour"});
  expect_bad_input(run_command({"replay", with_problem([](auto& json) { json["top_k"] = "four"; })}),
                   {"changed", "top_k"});
  expect_bad_input(run_command({"replay", sample_io()}), {"io"});
  expect_bad_input(run_command({"replay", "/nonexistent/case"}), {"/nonexistent/case"});
}

TEST_F(Replay, ExpectError) {
  // Refused when it is planned, with the right and with another text.
  const auto bad = [&](const char* text) {
    return with_problem([&](auto& json) {
      json["top_k"] = 99;
      json["expect_error"] = text;
    });
  };
  EXPECT_EQ(run_command({"replay", bad("top_k")}).status, 0);
  EXPECT_EQ(run_command({"replay", bad("hidden_size is odd")}).status, 1);
  // Refused when it is read, before a Case exists that could say what was expected.
  const auto unreadable = [&](const char* text) {
    return with_problem([&](auto& json) {
      json["colour"] = "blue";
      json["expect_error"] = text;
    });
  };
  EXPECT_EQ(run_command({"replay", unreadable("colour")}).status, 0);
  EXPECT_EQ(run_command({"replay", unreadable("hidden_size is odd")}).status, 1);
  // Not refused at all.
  const CommandResult ran = run_command({"replay", with_problem([](auto& json) { json["expect_error"] = "top_k"; })});
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.out, HasSubstr("it ran"));
}

TEST_F(Replay, PartsAndRanks) {
  const auto rows = run_command({"replay", recorded_, "--experts", "reference_standard", "--json"}).json();
  for (const auto& row : rows["cases"][0]["rows"]) EXPECT_EQ(row["experts"], "experts/reference_standard");
  expect_bad_input(run_command({"replay", recorded_, "--ranks", "2"}), {"--ranks", "2", "--comm self has 1"});
  expect_bad_input(run_command({"replay", recorded_, "--comm", "nccl"}), {"--comm", "nccl"});
  expect_bad_input(run_command({"replay", recorded_, "--experts", "best"}), {"best"});
}

}  // namespace
}  // namespace conclave
