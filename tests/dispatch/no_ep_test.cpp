// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conclave/error.hpp"
#include "dispatch/dispatch_list.hpp"
#include "support/expert_case.hpp"

namespace conclave {
namespace {

using test::make_expert_case;
using test::values;
using ::testing::HasSubstr;

std::unique_ptr<ModularPrepareFinalize> make(const Problem& problem) {
  return test::make_dispatch<ModularPrepareFinalize>("dispatch/no_ep", problem);
}

PrepareInput input_of(const test::ExpertCase& c) {
  PrepareInput input;
  input.hidden_states = c.hidden_states;
  input.routing = {c.topk_ids, c.topk_weights};
  input.apply_router_weight_on_input = c.moe().apply_router_weight_on_input;
  return input;
}

MoeConfig weighted_config(DType dtype) {
  MoeConfig moe = test::small_config(dtype);
  moe.top_k = 1;
  moe.apply_router_weight_on_input = true;
  return moe;
}

TEST(NoEp, PassesActivationsThrough) {
  const auto executor = make_executor(2);
  const test::ExpertCase c = make_expert_case(test::small_config(), 4, 1);
  const auto part = make(c.problem);
  Arena measure = Arena::measuring();
  part->plan_scratch(measure, 4);
  EXPECT_EQ(measure.peak(), 0);
  Arena none(std::span<std::byte>(), Device{});
  const Prepared prepared = part->prepare(input_of(c), none, Stream::cpu(*executor));
  EXPECT_EQ(prepared.activations.data, c.hidden_states.view().data);
  EXPECT_FALSE(prepared.scales || prepared.dispatched || prepared.expert_tokens);
  EXPECT_EQ(part->expert_rows(4), 4);
}

/// Rounded to the dtype of the activations, out of place; two equal rows with equal weights stay equal.
TEST(NoEp, PutsTheWeightOnTheInputOutOfPlace) {
  const auto executor = make_executor(2);
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (DType weights : {DType::f32, DType::bf16}) {
      test::ExpertCase c = make_expert_case(weighted_config(dtype), 30, 1);
      c.topk_weights = test::random_weights(weights, 30, 1, 1);
      test::set(c.topk_weights, {29, 0}, test::at(c.topk_weights, {0, 0}));
      for (std::int64_t h = 0; h < 19; ++h) test::set(c.hidden_states, {29, h}, test::at(c.hidden_states, {0, h}));
      const std::vector<double> before = values(c.hidden_states);
      const auto part = make(c.problem);
      const test::PoisonedArena memory([&](Arena& arena) { part->plan_scratch(arena, 30); });
      Arena arena = memory.arena();
      const Prepared prepared = part->prepare(input_of(c), arena, Stream::cpu(*executor));
      EXPECT_EQ(values(c.hidden_states), before);
      EXPECT_EQ(prepared.activations.dtype, dtype);
      for (std::int64_t m = 0; m < 30; ++m)
        for (std::int64_t h = 0; h < 19; ++h) {
          const double product = test::at(c.hidden_states, {m, h}) * test::at(c.topk_weights, {m, 0});
          // Through f32, as the library computes.
          const Tensor rounded = test::tensor_of(dtype, {1}, {double(float(product))});
          ASSERT_EQ(test::at(prepared.activations, {m, h}), test::at(rounded, {0})) << name_of(dtype);
        }
      EXPECT_TRUE(test::same_bytes(prepared.activations.at(0), prepared.activations.at(29)));
      EXPECT_TRUE(memory.guard_intact());
    }
}

TEST(NoEp, WeightOnInputNeedsOnePick) {
  const auto executor = make_inline_executor();
  const test::ExpertCase c = make_expert_case(test::small_config(), 4, 1);
  PrepareInput input = input_of(c);
  input.apply_router_weight_on_input = true;
  Arena arena = Arena::measuring();
  try {
    make(c.problem)->prepare(input, arena, Stream::cpu(*executor));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("top_k 3"));
  }
}

TEST(NoEp, StridedRowsAreFineStridedColumnsAreNot) {
  const auto executor = make_inline_executor();
  const test::ExpertCase c = make_expert_case(test::small_config(), 4, 1);
  const Tensor wide = test::random_tensor(DType::f32, {4, 38}, 1);
  PrepareInput input = input_of(c);
  input.hidden_states = wide.view().narrow(1, 8, 19);
  Arena arena = Arena::measuring();
  const auto part = make(c.problem);
  EXPECT_EQ(part->prepare(input, arena, Stream::cpu(*executor)).activations.stride(0), 38);
  ConstTensorView columns = wide;
  columns.shape = {4, 19};
  columns.strides = {38, 2};
  input.hidden_states = columns;
  EXPECT_THROW(part->prepare(input, arena, Stream::cpu(*executor)), Error);
}

FinalizeInput finalize_of(const test::ExpertCase& c, const Tensor& rows, ExpertOutputKind kind,
                          WeightAndReduceKind reduce) {
  FinalizeInput input;
  input.expert_output.kind = kind;
  input.expert_output.rows = rows;
  input.routing = {c.topk_ids, c.topk_weights};
  input.weight_and_reduce = &weight_and_reduce(reduce);
  return input;
}

TEST(NoEp, FinalizeReducesAndResolvesDelegate) {
  const auto executor = make_executor(2);
  const test::ExpertCase c = make_expert_case(test::small_config(), 4, 1);
  const Tensor rows = test::random_tensor(DType::f32, {4, 3, 19}, 9);
  const auto part = make(c.problem);
  std::vector<std::vector<double>> outputs;
  for (WeightAndReduceKind kind : {WeightAndReduceKind::contiguous, WeightAndReduceKind::delegate}) {
    const Tensor out = test::poisoned_tensor(DType::f32, {4, 19});
    part->finalize(finalize_of(c, rows, ExpertOutputKind::unreduced_standard, kind), out, Stream::cpu(*executor));
    outputs.push_back(values(out));
  }
  EXPECT_EQ(outputs[0], outputs[1]);
  double sum = 0;
  for (std::int64_t j = 0; j < 3; ++j) sum += test::at(c.topk_weights, {2, j}) * test::at(rows, {2, j, 7});
  EXPECT_NEAR(outputs[0][2 * 19 + 7], sum, 1e-6);
}

TEST(NoEp, FinalizeDoesNotWeightTwice) {
  const auto executor = make_executor(2);
  const test::ExpertCase c = make_expert_case(weighted_config(DType::f32), 4, 1);
  const Tensor rows = test::random_tensor(DType::f32, {4, 1, 19}, 9);
  FinalizeInput input = finalize_of(c, rows, ExpertOutputKind::unreduced_standard, WeightAndReduceKind::contiguous);
  input.router_weight_applied = true;
  const Tensor out = test::poisoned_tensor(DType::f32, {4, 19});
  make(c.problem)->finalize(input, out, Stream::cpu(*executor));
  EXPECT_EQ(values(out), values(rows));
}

TEST(NoEp, FinalizeRefusesAReductionThatDoesNotFitTheRows) {
  const auto executor = make_inline_executor();
  const Stream stream = Stream::cpu(*executor);
  const test::ExpertCase c = make_expert_case(test::small_config(), 4, 1);
  const Tensor rows = test::random_tensor(DType::f32, {4, 3, 19}, 9);
  const Tensor out = test::poisoned_tensor(DType::f32, {4, 19});
  const auto part = make(c.problem);
  FinalizeInput input = finalize_of(c, rows, ExpertOutputKind::unreduced_standard, WeightAndReduceKind::naive_batched);
  EXPECT_THROW(part->finalize(input, out, stream), Error);
  input.weight_and_reduce = nullptr;
  EXPECT_THROW(part->finalize(input, out, stream), Error);
  input = finalize_of(c, rows, ExpertOutputKind::unfinalized, WeightAndReduceKind::delegate);
  EXPECT_THROW(part->finalize(input, out, stream), Error);
}

TEST(NoEp, NothingInIsNothingOut) {
  const auto executor = make_executor(2);
  const test::ExpertCase c = make_expert_case(weighted_config(DType::f32), 0, 1);
  const auto part = make(c.problem);
  Arena arena(std::span<std::byte>(), Device{});
  const Prepared prepared = part->prepare(input_of(c), arena, Stream::cpu(*executor));
  EXPECT_EQ(prepared.activations.size(0), 0);
}

}  // namespace
}  // namespace conclave
