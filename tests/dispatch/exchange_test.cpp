// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What each exchange delivers to the experts of each rank. What comes back is in tests/kernel/ranks_test.cpp.
#include "dispatch/exchange.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dispatch/dispatch_list.hpp"
#include "dispatch/send_plan.hpp"
#include "support/expert_case.hpp"
#include "support/message_of.hpp"

namespace conclave {
namespace {

using test::tensor_of;
using test::values;
using ::testing::HasSubstr;

/// Four experts, two on each of two ranks. Rank 0 has tokens 0 to 2, rank 1 token 3.
struct TwoRanks {
  test::ExpertCase all;
  TwoRanks() {
    MoeConfig moe = test::small_config();
    moe.num_experts = 4;
    moe.top_k = 2;
    moe.max_num_tokens = 3;
    all = test::make_expert_case(moe, 4, 1);
    // Token 0: both experts of rank 1. Token 1: one of each. Token 2: none. Token 3: expert 2 twice.
    all.topk_ids = tensor_of(DType::i32, {4, 2}, {2, 3, 0, 3, -1, 9, 2, 2});
  }
};

struct Received {
  std::vector<std::vector<double>> rows;  ///< Standard: rows; batched: those of each expert, one behind the other.
  std::vector<double> ids, counts;
};

Received receive(const char* name, All2All all2all, int rank) {
  const TwoRanks data;
  Received got;
  run_ranks(2, [&](Communicator& communicator) {
    Problem p = data.all.problem;
    p.parallel = make_parallel(1, 0, 1, 0, 2, communicator.rank(), 1, true, all2all);
    const auto ends = test::dispatch_entry(name).make({p, nullptr, &communicator});
    auto& part = dynamic_cast<ModularPrepareFinalize&>(*ends);
    EXPECT_EQ(part.num_dispatchers(), 2);
    EXPECT_EQ(part.topk_indices_dtype(), DType::i32);
    EXPECT_EQ(part.max_num_tokens_per_rank(), 3);
    EXPECT_EQ(part.expert_rows(1), 6);
    const std::int64_t begin = communicator.rank() == 0 ? 0 : 3, count = communicator.rank() == 0 ? 3 : 1;
    const test::PoisonedArena memory([&](Arena& arena) { part.plan_scratch(arena, count); });
    Arena arena = memory.arena();
    const auto executor = make_inline_executor();
    PrepareInput input;
    input.hidden_states = data.all.hidden_states.view().narrow(0, begin, count);
    input.routing =
        Routing{data.all.topk_ids.view().narrow(0, begin, count), data.all.topk_weights.view().narrow(0, begin, count)};
    const Prepared prepared = part.prepare(input, arena, Stream::cpu(*executor));
    EXPECT_TRUE(memory.guard_intact());
    if (communicator.rank() != rank) return;
    if (prepared.dispatched) got.ids = values(prepared.dispatched->topk_ids);
    if (!prepared.expert_tokens) {
      for (std::int64_t r = 0; r < prepared.activations.size(0); ++r)
        got.rows.push_back(values(prepared.activations.at(r)));
      return;
    }
    got.counts = values(prepared.expert_tokens->counts);
    for (std::int64_t e = 0; e < 2; ++e)
      for (std::int64_t r = 0; r < prepared.expert_tokens->host_counts[e]; ++r)
        got.rows.push_back(values(prepared.activations.at(e).at(r)));
  });
  return got;
}

std::vector<std::vector<double>> tokens(std::initializer_list<std::int64_t> list) {
  const TwoRanks data;
  std::vector<std::vector<double>> rows;
  for (const std::int64_t m : list) rows.push_back(values(data.all.hidden_states.view().at(m)));
  return rows;
}

TEST(AllToAll, ATokenGoesOnceToARankThatHasItsExperts) {
  const Received zero = receive("dispatch/all_to_all", All2All::all_to_all, 0);
  EXPECT_EQ(zero.rows, tokens({1}));
  EXPECT_EQ(zero.ids, (std::vector<double>{0, 3}));
  const Received one = receive("dispatch/all_to_all", All2All::all_to_all, 1);
  EXPECT_EQ(one.rows, tokens({0, 1, 3}));
  EXPECT_EQ(one.ids, (std::vector<double>{2, 3, 0, 3, 2, 2}));
}

TEST(AllgatherReducescatter, EveryRankGetsEverything) {
  for (int rank : {0, 1}) {
    const Received all = receive("dispatch/allgather_reducescatter", All2All::allgather_reducescatter, rank);
    EXPECT_EQ(all.rows, tokens({0, 1, 2, 3}));
    EXPECT_EQ(all.ids, (std::vector<double>{2, 3, 0, 3, -1, -1, 2, 2}));
  }
}

TEST(LowLatency, RowsLieByExpertThenRankThenToken) {
  const Received zero = receive("dispatch/low_latency", All2All::low_latency, 0);
  EXPECT_EQ(zero.counts, (std::vector<double>{1, 0}));
  EXPECT_EQ(zero.rows, tokens({1}));
  const Received one = receive("dispatch/low_latency", All2All::low_latency, 1);
  EXPECT_EQ(one.counts, (std::vector<double>{2, 2}));
  EXPECT_EQ(one.rows, tokens({0, 3, 0, 1}));
}

TEST(SendPlan, GroupsByRankInTokenOrder) {
  const test::PoisonedArena memory([](Arena& arena) { dispatch::SendPlan::take(arena, 3, 2, 3); });
  Arena arena = memory.arena();
  const dispatch::SendPlan plan = dispatch::SendPlan::take(arena, 3, 2, 3);
  const int owner[3][2] = {{2, 0}, {2, 2}, {-1, 0}};
  plan.fill(2, [&](std::int64_t token, std::int64_t pick) { return owner[token][pick]; });
  EXPECT_EQ(values(plan.counts), (std::vector<double>{2, 0, 2}));
  EXPECT_EQ(plan.num_rows(), 4);
  EXPECT_EQ(plan.token_of(0), 0);
  EXPECT_EQ(plan.token_of(1), 2);
  EXPECT_EQ(plan.row(1, 2), 3);
  EXPECT_EQ(plan.row(1, 0), -1);
}

/// A rank that plans for fewer tokens than another sends: named, on both.
TEST(LowLatency, MoreTokensThanPlannedAreRefused) {
  const TwoRanks data;
  const std::string message = test::message_of([&] {
    run_ranks(2, [&](Communicator& communicator) {
      Problem p = data.all.problem;
      if (communicator.rank() == 1) p.moe.max_num_tokens = 1;
      p.parallel = make_parallel(1, 0, 1, 0, 2, communicator.rank(), 1, true, All2All::low_latency);
      const auto ends = test::dispatch_entry("dispatch/low_latency").make({p, nullptr, &communicator});
      auto& part = dynamic_cast<ModularPrepareFinalize&>(*ends);
      const auto executor = make_inline_executor();
      PrepareInput input;
      const std::int64_t count = communicator.rank() == 0 ? 2 : 1;
      const test::PoisonedArena larger([&](Arena& a) { part.plan_scratch(a, count); });
      Arena own = larger.arena();
      input.hidden_states = data.all.hidden_states.view().narrow(0, 0, count);
      input.routing =
          Routing{data.all.topk_ids.view().narrow(0, 0, count), data.all.topk_weights.view().narrow(0, 0, count)};
      part.prepare(input, own, Stream::cpu(*executor));
    });
  });
  EXPECT_THAT(message, HasSubstr("low_latency_dispatch: rank 0 sends"));
}

}  // namespace
}  // namespace conclave
