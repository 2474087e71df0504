// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The algorithm: small examples by hand, and what must hold for any load.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "conclave/eplb.hpp"
#include "support/message_of.hpp"

namespace conclave {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::int32_t> sorted_experts(const ExpertPlacement& p, std::int64_t rank) {
  const auto begin = p.physical_to_logical.begin() + rank * p.slots_per_rank();
  std::vector<std::int32_t> experts(begin, begin + p.slots_per_rank());
  std::sort(experts.begin(), experts.end());
  return experts;
}

/// Loads 12, 6, 4, 2 in six slots. Spare slots go to 12 -> 6, 6, and then to 6 of two replicas against 6 of one: fewer
/// replicas first, so expert 1 is halved too. Shares 6 6 3 3 4 2 on three ranks of two, heaviest first:
/// 6 | 6 | 4, then 3 to the third (7), 3 to the first (9), 2 to the second (8).
TEST(Rebalance, WorkedByHand) {
  const EplbConfig c{.num_logical = 4, .num_physical = 6, .num_ranks = 3};
  const std::vector<double> load{12, 6, 4, 2};
  const ExpertPlacement before = initial_placement(c);
  EXPECT_EQ(balance_of(before, load).max, 9);  // 6 + 3, 4 + 2, 6 + 3
  // No rank would get below 9, so nothing moves.
  EXPECT_EQ(rebalance(c, load, before), before);

  // The same loads on experts whose first slots are elsewhere: 0 and 1 share a rank at first.
  const ExpertPlacement poor = make_placement(c, {0, 1, 0, 1, 2, 3});
  const ExpertPlacement worse = make_placement(c, {0, 0, 1, 1, 2, 3});
  EXPECT_EQ(balance_of(worse, load).max, 12);
  const ExpertPlacement after = rebalance(c, load, worse);
  EXPECT_EQ(balance_of(after, load).max, 9);
  EXPECT_THAT(after.replica_count, ElementsAre(2, 2, 1, 1));
  std::multiset<std::vector<std::int32_t>> sets;
  for (std::int64_t r = 0; r < 3; ++r) sets.insert(sorted_experts(after, r));
  EXPECT_THAT(sets, ElementsAre(ElementsAre(0, 1), ElementsAre(0, 3), ElementsAre(1, 2)));
  EXPECT_EQ(rebalance(c, load, poor), poor);  // 9 is what it has already
}

/// Two nodes, two groups: {0, 1} with 9 + 1 and {2, 3} with 4 + 4. Groups stay whole on a node, and the one spare slot
/// of each node goes to its heaviest expert.
TEST(Rebalance, HierarchicalKeepsGroupsOnANode) {
  const EplbConfig c{.num_logical = 4, .num_physical = 8, .num_ranks = 4, .num_nodes = 2, .num_groups = 2};
  ASSERT_EQ(eplb_policy_of(c), EplbPolicy::hierarchical);
  const ExpertPlacement before = make_placement(c, {0, 1, 0, 1, 2, 3, 2, 3});
  const std::vector<double> load{9, 1, 4, 4};
  const ExpertPlacement after = rebalance(c, load, before);
  // Node of {0, 1}: shares 3 3 3 1, so 6 and 4; before, 5 and 5: kept there. 2 and 3: 4 and 4. Nothing gains.
  EXPECT_EQ(after, before);
  const ExpertPlacement poor = make_placement(c, {0, 0, 1, 1, 2, 2, 3, 3});
  const ExpertPlacement better = rebalance(c, load, poor);
  EXPECT_EQ(balance_of(poor, load).max, 9);
  EXPECT_EQ(balance_of(better, load).max, 6);
  for (std::int64_t slot = 0; slot < 8; ++slot) {
    const std::int32_t expert = better.physical_to_logical[static_cast<std::size_t>(slot)];
    EXPECT_EQ(expert / 2, slot / 4) << slot;
  }
}

TEST(Rebalance, PolicyFollowsFromTheSizes) {
  EXPECT_EQ(eplb_policy_of({.num_logical = 8, .num_physical = 8, .num_ranks = 4, .num_nodes = 1, .num_groups = 4}),
            EplbPolicy::global);
  EXPECT_EQ(eplb_policy_of({.num_logical = 8, .num_physical = 8, .num_ranks = 6, .num_nodes = 3, .num_groups = 4}),
            EplbPolicy::global);
  EXPECT_EQ(eplb_policy_of({.num_logical = 10, .num_physical = 12, .num_ranks = 4, .num_nodes = 2, .num_groups = 4}),
            EplbPolicy::global);
}

struct Draw {
  EplbConfig config;
  std::vector<double> load;
};

Draw draw(std::mt19937_64& bits) {
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(high - low + 1));
  };
  Draw d;
  EplbConfig& c = d.config;
  c.num_nodes = pick(1, 4);
  c.num_ranks = c.num_nodes * pick(1, 4);
  c.num_groups = pick(0, 1) == 0 ? 1 : c.num_nodes * pick(1, 3);
  c.num_logical = c.num_groups * pick(1, 9);
  c.num_physical = (c.num_logical + c.num_ranks - 1) / c.num_ranks * c.num_ranks + c.num_ranks * pick(0, 3);
  std::exponential_distribution<double> skewed(1.0);
  for (std::int64_t e = 0; e < c.num_logical; ++e)
    d.load.push_back(pick(0, 5) == 0 ? 0.0 : std::floor(std::exp(2 * skewed(bits))));
  return d;
}

TEST(Rebalance, HoldsForAnyLoad) {
  std::mt19937_64 bits(7);
  int improved = 0;
  for (int round = 0; round < 400; ++round) {
    const Draw d = draw(bits);
    const EplbConfig& c = d.config;
    const ExpertPlacement before = initial_placement(c);
    const ExpertPlacement after = rebalance(c, d.load, before);
    // make_placement checks that every slot holds an expert and every expert has a slot.
    ASSERT_EQ(make_placement(c, after.physical_to_logical), after);
    ASSERT_LE(balance_of(after, d.load).max, balance_of(before, d.load).max);
    ASSERT_EQ(rebalance(c, d.load, before), after);
    improved += after == before ? 0 : 1;
    // A second load changes it again, from wherever it is.
    std::vector<double> load(d.load.rbegin(), d.load.rend());
    const ExpertPlacement last = rebalance(c, load, after);
    ASSERT_LE(balance_of(last, load).max, balance_of(after, load).max);
    const EplbExchange exchange = plan_exchange(c, after, last);
    for (const EplbMove& m : exchange.moves) ASSERT_NE(m.from_rank, m.to_rank);
  }
  EXPECT_GT(improved, 200);
}

/// Greedy packing is within a factor of the best possible: no rank above mean plus one share.
TEST(Rebalance, ComesCloseToEven) {
  const EplbConfig c{.num_logical = 64, .num_physical = 80, .num_ranks = 8};
  std::vector<double> load;
  for (int e = 0; e < 64; ++e) load.push_back(1000.0 / (e + 1));
  const ExpertPlacement before = initial_placement(c);
  const ExpertPlacement after = rebalance(c, load, before);
  EXPECT_LT(balance_of(before, load).balancedness(), 0.45);
  EXPECT_GT(balance_of(after, load).balancedness(), 0.93);
}

TEST(Rebalance, DealsSlotsEvenlyWithoutALoad) {
  const EplbConfig c{.num_logical = 4, .num_physical = 12, .num_ranks = 2};
  const ExpertPlacement lopsided = make_placement(c, {0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3});
  const std::vector<double> equal(4, 5.0);
  EXPECT_THAT(rebalance(c, equal, lopsided).replica_count, ElementsAre(3, 3, 3, 3));
  // Without a load at all nothing is gained by moving.
  EXPECT_EQ(rebalance(c, std::vector<double>(4, 0.0), lopsided), lopsided);
}

TEST(Rebalance, OneRankHasNothingToDo) {
  const EplbConfig c{.num_logical = 5, .num_physical = 7, .num_ranks = 1};
  const ExpertPlacement before = initial_placement(c);
  EXPECT_EQ(rebalance(c, std::vector<double>{1, 2, 3, 4, 5}, before), before);
}

TEST(Rebalance, RefusesLoadsThatAreNone) {
  const EplbConfig c{.num_logical = 2, .num_physical = 2, .num_ranks = 2};
  const ExpertPlacement p = initial_placement(c);
  const auto message = [&](std::vector<double> load) { return test::message_of([&] { rebalance(c, load, p); }); };
  EXPECT_THAT(message({1}), HasSubstr("load: given 1 values, expected num_logical 2"));
  EXPECT_THAT(message({1, NAN}), HasSubstr("load: given nan for expert 1"));
  EXPECT_THAT(message({-3, 1}), HasSubstr("load: given -3 for expert 0"));
}

TEST(Rebalance, ReportsBalanceBeforeAndAfter) {
  const EplbConfig c{.num_logical = 4, .num_physical = 6, .num_ranks = 3};
  const std::vector<double> load{12, 6, 4, 2};
  const ExpertPlacement before = make_placement(c, {0, 0, 1, 1, 2, 3});
  const std::string text = rebalance_report(c, load, before, rebalance(c, load, before));
  EXPECT_THAT(text, HasSubstr("experts: 4 in 6 slots on 3 ranks, global policy; most replicas 2 (expert 0)"));
  EXPECT_THAT(text, HasSubstr("before: largest rank 12 of mean 8 tokens, balancedness 0.667"));
  EXPECT_THAT(text, HasSubstr("after: largest rank 9 of mean 8 tokens, balancedness 0.889"));
  EXPECT_THAT(text, HasSubstr("of 6 slots between ranks"));
}

}  // namespace
}  // namespace conclave
