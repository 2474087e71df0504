// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
#include <gtest/gtest.h>

#include "conclave/error.hpp"
#include "dispatch/dispatch_list.hpp"
#include "support/expert_case.hpp"

namespace conclave {
namespace {

using test::at;
using test::make_expert_case;
using test::tensor_of;
using test::values;

/// A prepared batch and the memory that holds it.
struct Batch {
  std::unique_ptr<ModularPrepareFinalize> part;
  std::unique_ptr<test::PoisonedArena> memory;
  Prepared prepared;
  std::vector<double> counts() const { return values(prepared.expert_tokens->counts); }
};

Batch prepare(const test::ExpertCase& c, Executor& executor) {
  Batch b;
  const std::int64_t num_tokens = c.hidden_states.view().size(0);
  b.part = test::make_dispatch<ModularPrepareFinalize>("dispatch/no_ep_batched", c.problem);
  b.memory = std::make_unique<test::PoisonedArena>([&](Arena& arena) { b.part->plan_scratch(arena, num_tokens); });
  PrepareInput input;
  input.hidden_states = c.hidden_states;
  input.routing = {c.topk_ids, c.topk_weights};
  input.expert_map = c.expert_map;
  input.apply_router_weight_on_input = c.moe().apply_router_weight_on_input;
  Arena arena = b.memory->arena();
  b.prepared = b.part->prepare(input, arena, Stream::cpu(executor));
  EXPECT_TRUE(b.memory->guard_intact());
  EXPECT_EQ(b.prepared.activations.size(1), b.part->expert_rows(num_tokens));
  return b;
}

/// Identity experts: what comes back is the weighted sum of the token's own row.
Tensor round_trip(const test::ExpertCase& c, const Batch& b, Executor& executor) {
  FinalizeInput input;
  input.expert_output.kind = ExpertOutputKind::unreduced_batched;
  const ConstTensorView rows = b.prepared.activations;
  input.expert_output.rows =
      TensorView(const_cast<void*>(rows.data), rows.dtype, {rows.size(0), rows.size(1), rows.size(2)});
  input.routing = {c.topk_ids, c.topk_weights};
  input.expert_map = c.expert_map;
  input.router_weight_applied = c.moe().apply_router_weight_on_input;
  input.weight_and_reduce = &weight_and_reduce(WeightAndReduceKind::delegate);
  const Tensor out = test::poisoned_tensor(c.moe().dtype, {c.hidden_states.view().size(0), c.moe().hidden_size});
  b.part->finalize(input, out, Stream::cpu(executor));
  return out;
}

TEST(NoEpBatched, TokensOfAnExpertComeInTokenOrder) {
  const auto executor = make_executor(2);
  test::ExpertCase c = make_expert_case(test::small_config(DType::bf16), 3, 1);
  c.topk_ids = tensor_of(DType::i32, {3, 3}, {4, 0, 2, 0, 1, 4, 2, 0, 4});
  const Batch b = prepare(c, *executor);
  EXPECT_EQ(b.counts(), (std::vector<double>{3, 1, 2, 0, 3}));
  EXPECT_EQ(b.prepared.expert_tokens->host_counts[4], 3);
  const auto same_row = [&](std::int64_t e, std::int64_t row, std::int64_t token) {
    return test::same_bytes(b.prepared.activations.at(e).at(row), c.hidden_states.view().at(token));
  };
  EXPECT_TRUE(same_row(0, 0, 0) && same_row(0, 1, 1) && same_row(0, 2, 2));
  EXPECT_TRUE(same_row(1, 0, 1));
  EXPECT_TRUE(same_row(2, 0, 0) && same_row(2, 1, 2));
}

TEST(NoEpBatched, EmptyRemoteAndStaleIdsGetNoRow) {
  const auto executor = make_executor(2);
  MoeConfig moe = test::small_config();
  moe.num_experts = 4;
  moe.top_k = 2;
  test::ExpertCase c = make_expert_case(moe, 5, 1, 2);
  c.problem.parallel = make_parallel(2, 1, 1, 0, 1, 0, 1, true, All2All::none);
  const Tensor map = tensor_of(DType::i32, {4}, {-1, -1, 0, 1});
  c.expert_map = ConstTensorView(map);
  c.topk_ids = tensor_of(DType::i32, {5, 2}, {2, 3, -1, -1, 0, -1, 1000000, 2, 4, -9});
  const Batch b = prepare(c, *executor);
  EXPECT_EQ(b.counts(), (std::vector<double>{2, 1}));
  const Tensor out = round_trip(c, b, *executor);
  for (std::int64_t m : {1, 2, 4})
    for (double v : values(out.view().at(m))) EXPECT_EQ(v, 0.0);
  EXPECT_FLOAT_EQ(float(at(out, {3, 6})), float(at(c.topk_weights, {3, 1}) * at(c.hidden_states, {3, 6})));
}

/// Two picks of one expert: one row, weights .3 + .2. Every token on one expert fills exactly T rows.
TEST(NoEpBatched, DuplicatesNeedOneRowAndAreSummed) {
  const auto executor = make_executor(2);
  MoeConfig moe = test::small_config();
  moe.num_experts = 4;
  moe.top_k = 2;
  test::ExpertCase c = make_expert_case(moe, 6, 1);
  c.topk_ids = tensor_of(DType::i32, {6, 2}, std::vector<double>(12, 1.0));
  c.topk_weights = tensor_of(DType::f32, {6, 2}, {.3, .2, .3, .2, .3, .2, .3, .2, .3, .2, .3, .2});
  const Batch b = prepare(c, *executor);
  EXPECT_EQ(b.counts(), (std::vector<double>{0, 6, 0, 0}));
  const Tensor out = round_trip(c, b, *executor);
  for (std::int64_t m = 0; m < 6; ++m) EXPECT_NEAR(at(out, {m, 3}), 0.5 * at(c.hidden_states, {m, 3}), 1e-6);
}

TEST(NoEpBatched, IdentityExpertsReturnTheWeightedRow) {
  const auto executor = make_executor(2);
  const test::ExpertCase c = make_expert_case(test::small_config(), 200, 1);
  const Batch b = prepare(c, *executor);
  std::vector<double> expected;
  for (std::int64_t m = 0; m < 200; ++m)
    for (std::int64_t h = 0; h < 19; ++h) {
      double weight = 0;
      for (std::int64_t j = 0; j < 3; ++j) weight += at(c.topk_weights, {m, j});
      expected.push_back(weight * at(c.hidden_states, {m, h}));
    }
  EXPECT_LT(test::rel_error(round_trip(c, b, *executor), expected), 2e-7);
}

TEST(NoEpBatched, PutsTheWeightOnTheInput) {
  const auto executor = make_executor(2);
  MoeConfig moe = test::small_config();
  moe.top_k = 1;
  moe.apply_router_weight_on_input = true;
  const test::ExpertCase c = make_expert_case(moe, 7, 1);
  const std::vector<double> before = values(c.hidden_states);
  const Batch b = prepare(c, *executor);
  EXPECT_EQ(values(c.hidden_states), before);
  const Tensor out = round_trip(c, b, *executor);
  for (std::int64_t m = 0; m < 7; ++m)
    EXPECT_FLOAT_EQ(float(at(out, {m, 5})), float(at(c.topk_weights, {m, 0}) * at(c.hidden_states, {m, 5})));
}

TEST(NoEpBatched, NothingInGivesCountsOfZero) {
  const auto executor = make_executor(2);
  const test::ExpertCase c = make_expert_case(test::small_config(), 0, 1);
  EXPECT_EQ(prepare(c, *executor).counts(), std::vector<double>(5, 0.0));
}

}  // namespace
}  // namespace conclave
