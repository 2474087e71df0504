// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// conclave replay --ranks and check --ep: over simulated ranks the answer is that of one rank.
#include "cli/ranks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "cli/run_command.hpp"
#include "cli/sample.hpp"

namespace conclave {
namespace {

std::string case_file(const char* name) {
  return std::string(CONCLAVE_SOURCE_DIR) + "/tests/cases/" + name + ".safetensors";
}

TEST(SplitRows, IsUnevenAndLeavesOneRankOut) {
  using cli::split_rows;
  EXPECT_EQ(split_rows(9, 1), (std::vector<std::int64_t>{0, 9}));
  EXPECT_EQ(split_rows(9, 2), (std::vector<std::int64_t>{0, 3, 9}));
  const std::vector<std::int64_t> four = split_rows(10, 4);
  EXPECT_EQ(four.front(), 0);
  EXPECT_EQ(four.back(), 10);
  EXPECT_EQ(four[1], four[2]);
  EXPECT_EQ(cli::largest_share(0, 3), 0);
  EXPECT_EQ(cli::largest_share(9, 2), 6);
}

TEST(ReplayOverRanks, EveryPrepareGivesTheAnswerOfOneRank) {
  for (const char* placement : {"linear", "round_robin"})
    for (const char* ranks : {"2", "3", "8"}) {
      const CommandResult r = run_command({"replay", case_file("case_033_shared_gate"), case_file("case_zero_experts"),
                                           case_file("case_007_duplicate_ids_f32"), case_file("case_098_tokens_0_f32"),
                                           case_file("case_083_latent"), "--ranks", ranks, "--comm", "sim",
                                           "--placement", placement, "--json"});
      EXPECT_EQ(r.status, 0) << r.err << r.out;
      std::set<std::string> prepares;
      const auto json = r.json();
      for (const auto& row : json["cases"][0]["rows"])
        if (row["verdict"] == "ok") prepares.insert(row["prepare_finalize"]);
      EXPECT_THAT(prepares, testing::IsSupersetOf({"dispatch/all_to_all", "dispatch/allgather_reducescatter",
                                                   "dispatch/low_latency", "dispatch/no_ep"}));
    }
}

TEST(ReplayOverRanks, OnePrepareAndExpectedErrors) {
  const CommandResult r =
      run_command({"replay", case_file("case_005_stale_id_checked"), case_file("case_080_remote_rows_are_zero"),
                   "--ranks", "4", "--comm", "sim", "--prepare", "low_latency"});
  EXPECT_EQ(r.status, 0) << r.err << r.out;
}

/// Four ranks' parts are summed before anything is rounded; a refusal names the expert as the file does.
TEST(ReplayOverRanks, EveryPartOnFilesThatAreHardForManyRanks) {
  const CommandResult r =
      run_command({"replay", case_file("case_005_id_equals_num_experts"), case_file("case_063_e8m0_nan"), "--ranks",
                   "4", "--comm", "sim", "--prepare", "all", "--experts", "all"});
  EXPECT_EQ(r.status, 0) << r.err << r.out;
}

TEST(ReplayOverRanks, BadOptions) {
  const std::string path = case_file("case_033_shared_gate");
  expect_bad_input(run_command({"replay", path, "--comm", "smoke"}), {"--comm", "smoke", "self, sim or mpi"});
  expect_bad_input(run_command({"replay", path, "--ranks", "3"}), {"--ranks", "3", "self"});
  expect_bad_input(run_command({"replay", path, "--ranks", "-1", "--comm", "sim"}), {"--ranks", "-1"});
  expect_bad_input(run_command({"replay", path, "--placement", "spread"}), {"spread", "round_robin"});
}

TEST(CheckOverRanks, HasTheBitsOfOneRank) {
  const CommandResult r = run_command(
      {"check", sample_folder(), "--expected", sample_io(), "--ep", "--comm", "sim", "--ranks", "4", "--json"});
  EXPECT_EQ(r.status, 0) << r.err << r.out;
  ASSERT_FALSE(r.json()["rows"].empty());
  const auto json = r.json();
  for (const auto& row : json["rows"]) EXPECT_EQ(row["same_bits_as_one_rank"], true);
}

TEST(CheckOverRanks, RanksWithoutEpAreRefused) {
  expect_bad_input(run_command({"check", sample_folder(), "--expected", sample_io(), "--ranks", "2"}),
                   {"--ranks", "2", "--ep"});
}

TEST(CheckOverRanks, AnotherExchangeIsWithinTheTolerance) {
  const CommandResult r = run_command({"check", sample_folder(), "--expected", sample_io(), "--ep", "--comm", "sim",
                                       "--ranks", "3", "--prepare", "all_to_all"});
  EXPECT_EQ(r.status, 0) << r.err << r.out;
  EXPECT_THAT(r.out, testing::HasSubstr("over ranks by dispatch/all_to_all"));
}

}  // namespace
}  // namespace conclave
