// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Weights after an exchange are the target placement's, on every rank, and no more moved than had to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <random>
#include <set>

#include "conclave/eplb.hpp"
#include "support/message_of.hpp"
#include "support/tensors.hpp"

namespace conclave {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Ranks {0 1} {2 3} -> {0 2} {1 3}: two moves, each over the slot that the other reads.
TEST(PlanExchange, WorkedByHand) {
  const EplbConfig c{.num_logical = 4, .num_physical = 4, .num_ranks = 2};
  const ExpertPlacement current = make_placement(c, {0, 1, 2, 3});
  const EplbExchange plan = plan_exchange(c, current, make_placement(c, {0, 2, 1, 3}));
  EXPECT_THAT(plan.moves, ElementsAre(EplbMove{2, 1, 0, 0, 1, 0}, EplbMove{1, 0, 1, 1, 0, 0}));
  EXPECT_THAT(plan.copies, IsEmpty());
  EXPECT_EQ(plan.num_rounds, 1);
  EXPECT_THAT(plan_exchange(c, current, current).moves, IsEmpty());
}

/// A second replica on a rank that has the expert, or gets it, is copied there.
TEST(PlanExchange, CopiesWithinARank) {
  const EplbConfig c{.num_logical = 2, .num_physical = 6, .num_ranks = 2};
  const ExpertPlacement current = make_placement(c, {0, 0, 0, 1, 1, 1});
  const EplbExchange plan = plan_exchange(c, current, make_placement(c, {0, 1, 1, 1, 1, 0}));
  EXPECT_THAT(plan.moves, ElementsAre(EplbMove{1, 1, 0, 0, 1, 0}, EplbMove{0, 0, 0, 1, 2, 0}));
  EXPECT_THAT(plan.copies, ElementsAre(EplbCopy{0, 1, 2}));
}

/// Expert 0 is on ranks 0 and 2 of nodes {0 1} and {2 3}: rank 1 gets it from 0 and rank 3 from 2.
TEST(PlanExchange, PrefersSendersOfTheNode) {
  const EplbConfig wide{.num_logical = 3, .num_physical = 8, .num_ranks = 4, .num_nodes = 2};
  const ExpertPlacement from = make_placement(wide, {0, 1, 1, 1, 0, 2, 2, 2});
  const EplbExchange plan = plan_exchange(wide, from, make_placement(wide, {0, 1, 1, 0, 0, 2, 2, 0}));
  EXPECT_THAT(plan.moves, ElementsAre(EplbMove{0, 0, 0, 1, 1, 0}, EplbMove{0, 2, 0, 3, 1, 0}));
}

TEST(PlanExchange, RefusesAnExpertThatChangesItsSlotForNothing) {
  const EplbConfig c{.num_logical = 4, .num_physical = 4, .num_ranks = 2};
  const ExpertPlacement current = make_placement(c, {0, 1, 2, 3});
  EXPECT_THAT(test::message_of([&] {
                plan_exchange(c, current, make_placement(c, {1, 0, 2, 3}));
              }),
              HasSubstr("expert 1 goes from slot 1 to 0 of rank 0, expected to stay in its slot"));
}

/// What an expert's entry holds: its id, and the tensor's.
double entry(std::int32_t expert, int tensor) {
  return 100.0 * expert + tensor + 1;
}

void fill(const TensorView& tensor, std::int64_t slot, double value) {
  const TensorView row = tensor.at(slot);
  for (std::int64_t i = 0; i < row.numel(); ++i) test::store(row, i, value + 0.25 * static_cast<double>(i % 3));
}

/// Two tensors for each rank, one of them strided between slots.
struct Weights {
  Tensor w13, memory;
  std::vector<TensorView> views;
  explicit Weights(std::int64_t slots) : w13(DType::f32, {slots, 3, 5}), memory(DType::f32, {slots, 9}) {
    views = {w13.view(), memory.view().narrow(1, 2, 4)};
  }
};

void check_exchange(const EplbConfig& c, const ExpertPlacement& from, const ExpertPlacement& to) {
  const EplbExchange plan = plan_exchange(c, from, to);
  std::mutex mutex;
  run_ranks(static_cast<int>(c.num_ranks), [&](Communicator& comm) {
    const std::int64_t slots = c.slots_per_rank();
    Weights weights(slots);
    Weights expected(slots);
    for (std::int64_t s = 0; s < slots; ++s)
      for (int t = 0; t < 2; ++t) {
        const auto at = static_cast<std::size_t>(comm.rank() * slots + s);
        fill(weights.views[static_cast<std::size_t>(t)], s, entry(from.physical_to_logical[at], t));
        fill(expected.views[static_cast<std::size_t>(t)], s, entry(to.physical_to_logical[at], t));
      }
    exchange_weights(plan, weights.views, comm);
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(test::same_bytes(weights.w13, expected.w13)) << comm.rank();
    EXPECT_TRUE(test::same_bytes(weights.memory, expected.memory)) << comm.rank();
  });
}

TEST(ExchangeWeights, GivesThePlacementExactly) {
  const EplbConfig c{.num_logical = 4, .num_physical = 4, .num_ranks = 2};
  check_exchange(c, make_placement(c, {0, 1, 2, 3}), make_placement(c, {0, 2, 1, 3}));
  const EplbConfig wide{.num_logical = 2, .num_physical = 6, .num_ranks = 2};
  check_exchange(wide, make_placement(wide, {0, 0, 0, 1, 1, 1}), make_placement(wide, {0, 1, 1, 1, 1, 0}));
}

TEST(ExchangeWeights, FollowsRebalancingAgainAndAgain) {
  std::mt19937_64 bits(11);
  for (const EplbConfig& c :
       {EplbConfig{.num_logical = 9, .num_physical = 15, .num_ranks = 3},
        EplbConfig{.num_logical = 8, .num_physical = 16, .num_ranks = 4, .num_nodes = 2, .num_groups = 4}}) {
    ExpertPlacement now = initial_placement(c);
    int changes = 0;
    for (int round = 0; round < 8; ++round) {
      std::vector<double> load;
      for (std::int64_t e = 0; e < c.num_logical; ++e) load.push_back(static_cast<double>(bits() % 1000));
      const ExpertPlacement next = rebalance(c, load, now);
      check_exchange(c, now, next);
      changes += next == now ? 0 : 1;
      // As few moves as there are experts new to a rank.
      std::size_t arrivals = 0;
      for (std::int64_t r = 0; r < c.num_ranks; ++r) {
        const auto held = [&](const ExpertPlacement& p) {
          const auto begin = p.physical_to_logical.begin() + r * p.slots_per_rank();
          return std::set<std::int32_t>(begin, begin + p.slots_per_rank());
        };
        const std::set<std::int32_t> before = held(now);
        for (std::int32_t e : held(next)) arrivals += before.count(e) == 0 ? 1 : 0;
      }
      ASSERT_EQ(plan_exchange(c, now, next).moves.size(), arrivals);
      now = next;
    }
    EXPECT_GT(changes, 3);
  }
}

TEST(ExchangeWeights, RefusesTensorsThatAreTooShort) {
  const EplbConfig c{.num_logical = 4, .num_physical = 4, .num_ranks = 1};
  const ExpertPlacement p = initial_placement(c);
  EplbExchange plan = plan_exchange(c, p, p);
  plan.copies.push_back({0, 1, 3});
  const auto comm = make_self_communicator();
  const Tensor small(DType::f32, {3, 2});
  const std::vector<TensorView> tensors{small.view()};
  EXPECT_THAT(test::message_of([&] { exchange_weights(plan, tensors, *comm); }),
              HasSubstr("given f32[3, 2], expected at least 4 slots"));
}

}  // namespace
}  // namespace conclave
