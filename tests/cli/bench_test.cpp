// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// conclave bench: points for every part and token count, and refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/run_command.hpp"
#include "cli/sample.hpp"

namespace conclave {
namespace {

using testing::HasSubstr;

TEST(BenchCommand, EveryPartAndTokenCount) {
  const CommandResult r = run_command(
      {"bench", "--shape", "12,3,72,40", "--tokens", "5,1", "--experts", "all", "--min-time", "0.01", "--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  const auto json = r.json();
  std::map<std::int64_t, std::set<std::string>> experts;
  std::int64_t last = 0;
  for (const auto& point : json["points"]) {
    const std::int64_t tokens = point["num_tokens"];
    EXPECT_GE(tokens, last);
    last = tokens;
    experts[tokens].insert(point["experts"]);
    EXPECT_GT(point["time"]["median_us"], 0);
    EXPECT_LE(point["time"]["min_us"], point["time"]["median_us"]);
    EXPECT_GE(point["time"]["max_us"], point["time"]["median_us"]);
    EXPECT_GE(point["time"]["iterations"], 5);
    EXPECT_GT(point["floor_us"], 0);
    const double active = point["active_experts"];
    // Three distinct experts of 72 x 40, three matrices each, bf16.
    if (tokens == 1) {
      EXPECT_EQ(active, 3);
      EXPECT_EQ(point["weight_bytes"], 3 * 3 * 72 * 40 * 2);
      EXPECT_EQ(point["flops"], 3 * 3 * 72 * 40 * 2);
    }
    EXPECT_LE(active, 12);
  }
  EXPECT_GE(experts[1].size(), 2U);
  EXPECT_EQ(experts[1], experts[5]);
  EXPECT_THAT(json["notes"].dump(), HasSubstr("last-level cache"));
}

TEST(BenchCommand, StagesOfALayerWithASharedExpert) {
  const CommandResult r = run_command({"bench", "--shape", "deepseek-v2-lite", "--num-experts", "7", "--tokens", "2",
                                       "--min-time", "0.01", "--stages", "--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  const auto stages = r.json()["points"][0]["stages"];
  for (const char* stage : {"router", "prepare_experts_finalize", "shared"})
    EXPECT_GT(stages[stage]["median_us"], 0) << stage;
}

TEST(BenchCommand, ACheckpointInBothTypesAndASkewedLoad) {
  for (const char* dtype : {"f32", "bf16"}) {
    const CommandResult r = run_command({"bench", sample_folder(), "--tokens", "1,33", "--min-time", "0.01", "--dtype",
                                         dtype, "--routing", "zipf:1.5", "--stages"});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_THAT(r.out, HasSubstr("floor/median"));
    EXPECT_THAT(r.out, HasSubstr("GB/s"));
  }
}

TEST(BenchCommand, OverRanksWithATimelineOfAll) {
  const std::string trace = testing::TempDir() + "/ranks.json";
  for (const char* prepare : {"all_to_all", "low_latency", "no_ep"}) {
    const CommandResult r =
        run_command({"bench", "--shape", "12,3,72,40", "--tokens", "9,1", "--min-time", "0.01", "--ranks", "3",
                     "--comm", "sim", "--prepare", prepare, "--microbatches", "2", "--trace", trace, "--json"});
    ASSERT_EQ(r.status, 0) << r.err;
    const auto json = r.json();
    ASSERT_EQ(json["points"].size(), 2U);
    EXPECT_EQ(json["points"][0]["num_tokens"], 1);
    EXPECT_THAT(json["points"][0]["experts"].dump(), HasSubstr(std::string(" + dispatch/") + prepare));
    EXPECT_GE(json["points"][0]["time"]["iterations"], 5);
    EXPECT_THAT(json["notes"].dump(), HasSubstr("3 ranks by dispatch/"));
    std::ifstream file(trace);
    std::map<int, std::set<std::string>> stages;
    const auto timeline = nlohmann::json::parse(file);
    for (const auto& event : timeline["traceEvents"])
      if (event["ph"] == "X") {
        stages[event["pid"]].insert(event["name"]);
        EXPECT_GE(event["ts"], 0);
      }
    EXPECT_EQ(stages.size(), 3U) << prepare;
    EXPECT_THAT(stages[2], testing::IsSupersetOf({"route", "experts"}));
  }
}

TEST(BenchCommand, RanksNeedATransport) {
  expect_bad_input(run_command({"bench", "--shape", "12,3,72,40", "--ranks", "2"}), {"--ranks", "2", "self"});
  expect_bad_input(run_command({"bench", "--shape", "12,3,72,40", "--prepare", "all_to_all"}), {"--prepare", "--comm"});
  expect_bad_input(run_command({"bench", "--shape", "12,3,72,40", "--ranks", "2", "--comm", "sim", "--stages"}),
                   {"--stages", "sim"});
}

TEST(BenchCommand, MemoryThatIsNotThere) {
  const CommandResult r = run_command({"bench", "--shape", "100000,2,8192,32768", "--tokens", "1"});
  expect_bad_input(r, {"100000 experts", "GB", "--num-experts"});
}

TEST(BenchCommand, NothingFits) {
  const CommandResult r =
      run_command({"bench", "--shape", "8,2,64,48", "--weights", "fp8_block128", "--activations", "int4_group128"});
  EXPECT_EQ(r.status, 1);
  EXPECT_EQ(r.out, "");
  EXPECT_THAT(r.err, HasSubstr("int4_group128"));
}

TEST(BenchCommand, CodesOfEveryKey) {
  for (const char* key :
       {"fp8_tensor", "fp8_block128", "mxfp8", "mxfp4", "nvfp4", "int8_group128", "int4_channel_zp"}) {
    const CommandResult r = run_command(
        {"bench", "--shape", "4,2,256,128", "--weights", key, "--tokens", "1,3", "--min-time", "0.001", "--json"});
    EXPECT_EQ(r.status, 0) << key << ": " << r.err;
  }
}

TEST(BenchCommand, BadInput) {
  expect_bad_input(run_command({"bench", "--shape", "8,2,64,48", "--tokens", "0"}), {"--tokens", "0"});
  expect_bad_input(run_command({"bench", "--shape", "8,2,64,48", "--tokens", "1,x"}), {"--tokens", "1,x"});
  expect_bad_input(run_command({"bench", "--shape", "8,2,64,48", "--routing", "even"}), {"even", "uniform"});
  expect_bad_input(run_command({"bench", "--shape", "8,2,64,48", "--experts", "best"}), {"best"});
  expect_bad_input(run_command({"bench"}), {"MODEL", "--shape"});
}

}  // namespace
}  // namespace conclave
