// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The maps between experts and slots, and what a load means for ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conclave/eplb.hpp"
#include "support/message_of.hpp"

namespace conclave {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Placement, StartsWithEveryExpertThenTheFirstAgain) {
  const ExpertPlacement p = initial_placement({.num_logical = 4, .num_physical = 6, .num_ranks = 3});
  EXPECT_THAT(p.physical_to_logical, ElementsAre(0, 1, 2, 3, 0, 1));
  EXPECT_EQ(p.max_replicas, 3);
  EXPECT_THAT(p.logical_to_physical, ElementsAre(0, 4, -1, 1, 5, -1, 2, -1, -1, 3, -1, -1));
  EXPECT_THAT(p.replica_count, ElementsAre(2, 2, 1, 1));
  EXPECT_EQ(p.slots_per_rank(), 2);
  EXPECT_EQ(p.rank_of(4), 2);
}

TEST(Placement, BalanceSharesALoadAmongReplicas) {
  const ExpertPlacement p = initial_placement({.num_logical = 4, .num_physical = 6, .num_ranks = 3});
  const std::vector<double> load{10, 4, 3, 1};
  const EplbBalance b = balance_of(p, load);
  EXPECT_THAT(b.rank_load, ElementsAre(7, 4, 7));  // 5 + 2, 3 + 1, 5 + 2
  EXPECT_EQ(b.max, 7);
  EXPECT_EQ(b.mean, 6);
  EXPECT_DOUBLE_EQ(b.balancedness(), 6.0 / 7.0);
  EXPECT_EQ(balance_of(p, std::vector<double>(4, 0.0)).balancedness(), 1.0);
}

TEST(Placement, RefusesSizesWithTheirValues) {
  const auto message = [](const EplbConfig& c) { return test::message_of([&] { initial_placement(c); }); };
  EXPECT_THAT(message({.num_logical = 0}), HasSubstr("num_logical 0"));
  EXPECT_THAT(message({.num_logical = 8, .num_physical = 7}),
              HasSubstr("num_physical 7, expected at least num_logical 8"));
  EXPECT_THAT(message({.num_logical = 3, .num_physical = 4, .num_ranks = 5}),
              HasSubstr("num_physical 4, expected at least one slot for each of 5 ranks"));
  EXPECT_THAT(message({.num_logical = 8, .num_physical = 10, .num_ranks = 4}),
              HasSubstr("num_physical 10 over 4 ranks, expected a multiple (8 or 12)"));
  EXPECT_THAT(message({.num_logical = 8, .num_physical = 12, .num_ranks = 4, .num_nodes = 3}),
              HasSubstr("4 ranks on 3 nodes"));
}

TEST(Placement, RefusesMapsThatAreNone) {
  const EplbConfig c{.num_logical = 3, .num_physical = 4, .num_ranks = 2};
  const auto message = [&](std::vector<std::int32_t> slots) {
    return test::message_of([&] { make_placement(c, std::move(slots)); });
  };
  EXPECT_THAT(message({0, 1, 2}), HasSubstr("given 3 slots, expected num_physical 4"));
  EXPECT_THAT(message({0, 1, 2, 3}), HasSubstr("slot 3 holds expert 3, expected 0 to 2"));
  EXPECT_THAT(message({0, 1, 1, 1}), HasSubstr("expert 2 has no slot"));
  EXPECT_THAT(message({0, 0, 0, 0}), HasSubstr("expert 1 has no slot"));
  EXPECT_EQ(message({2, 0, 1, 2}), "no error");
}

}  // namespace
}  // namespace conclave
