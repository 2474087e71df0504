// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// conclave bench --microbatches N --trace FILE: the same results in parts, and a timeline that a browser can draw.
#include "cli/timeline.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/run_command.hpp"

namespace conclave::cli {
namespace {

using ::testing::HasSubstr;

TEST(TimelineFile, HasARowForWorkAndOneForData) {
  Timeline timeline;
  const auto at = [](int us) { return std::chrono::steady_clock::time_point(std::chrono::microseconds(1000 + us)); };
  timeline.on_span({"dispatch", 1, true, at(5), at(9)});
  timeline.on_span({"experts", 0, false, at(0), at(7)});
  const auto json = nlohmann::json::parse(timeline.json(3));
  const auto& events = json.at("traceEvents");
  ASSERT_EQ(events.size(), 4);
  EXPECT_EQ(events[0].at("args").at("name"), "micro-batch 0");
  EXPECT_EQ(events[1].at("args").at("name"), "micro-batch 1: data under way");
  EXPECT_EQ(events[2].at("name"), "dispatch");
  EXPECT_EQ(events[2].at("pid"), 3);
  EXPECT_EQ(events[2].at("tid"), 3);
  EXPECT_DOUBLE_EQ(events[2].at("ts"), 5.0);
  EXPECT_DOUBLE_EQ(events[2].at("dur"), 4.0);
  EXPECT_EQ(events[3].at("tid"), 0);
  EXPECT_DOUBLE_EQ(events[3].at("ts"), 0.0);
}

TEST(TimelineFile, IsWrittenByBench) {
  const std::string path = (std::filesystem::temp_directory_path() / "conclave-timeline.json").string();
  const CommandResult r = run_command(
      {"bench", "--shape", "12,3,72,40", "--tokens", "7", "--microbatches", "2", "--min-time", "0", "--trace", path});
  ASSERT_EQ(r.status, 0) << r.err;
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file);
  std::map<std::pair<std::string, int>, int> seen;
  for (const auto& event : json.at("traceEvents"))
    if (event.at("ph") == "X") ++seen[{event.at("name"), event.at("tid")}];
  for (int micro_batch : {0, 1})
    for (const char* stage : {"route", "prepare", "experts", "finalize"})
      EXPECT_EQ((seen[{stage, 2 * micro_batch}]), 1) << stage << " " << micro_batch;
  std::filesystem::remove(path);
}

TEST(TimelineFile, RefusesCountsAndPaths) {
  const CommandResult count =
      run_command({"bench", "--shape", "8,2,40,24", "--tokens", "2", "--min-time", "0", "--microbatches", "0"});
  EXPECT_EQ(count.status, 2);
  EXPECT_THAT(count.err, HasSubstr("--microbatches"));
  const CommandResult path = run_command(
      {"bench", "--shape", "8,2,40,24", "--tokens", "2", "--min-time", "0", "--trace", "/nowhere/trace.json"});
  EXPECT_NE(path.status, 0);
  EXPECT_THAT(path.err, HasSubstr("/nowhere/trace.json"));
}

}  // namespace
}  // namespace conclave::cli
