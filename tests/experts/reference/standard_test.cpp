// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// experts/reference_standard against three loops in double: what every other kernel is later compared with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conclave/error.hpp"
#include "support/expert_case.hpp"
#include "support/oracle.hpp"

namespace conclave {

std::vector<Entry<Experts>> builtin_experts();

namespace {

using test::ExpertCase;
using test::make_expert_case;
using test::rel_error;
using test::small_config;
using test::tensor_of;
using test::values;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kName = "experts/reference_standard";

std::unique_ptr<ModularExperts> make(const Problem& problem) {
  std::unique_ptr<Experts> part = test::make_experts(builtin_experts(), kName, problem);
  return std::unique_ptr<ModularExperts>(dynamic_cast<ModularExperts*>(part.release()));
}

Tensor run(const ExpertCase& c, int num_threads = 2) {
  const auto executor = make_executor(num_threads);
  const auto experts = make(c.problem);
  const auto packed = experts->pack(c.weights, Stream::cpu(*executor));
  return test::run_standard(*experts, c, *packed, *executor);
}

std::vector<double> expected(const ExpertCase& c) {
  return test::oracle_rows(c.moe(), c.hidden_states, c.weights, c.topk_ids, c.expert_map);
}

TEST(ReferenceStandard, DescribesItself) {
  const auto experts = make(make_expert_case(small_config(), 1, 1).problem);
  EXPECT_EQ(experts->name(), kName);
  EXPECT_EQ(experts->output_kind(), ExpertOutputKind::unreduced_standard);
  EXPECT_EQ(experts->finalize_weight_and_reduce(), WeightAndReduceKind::contiguous);
  EXPECT_EQ(experts->activation_format(), ActivationFormat::standard);
}

/// Every activation, layout, bias and dtype. Only the input's and the weights' own rounding separates the two: rows are
/// f32, and nothing in between is narrower.
TEST(ReferenceStandard, AgreesWithDoubleArithmeticForEveryFormula) {
  std::uint64_t seed = 0;
  for (Activation activation : all_activations())
    for (W13Layout layout : {W13Layout::gate_up, W13Layout::up_gate, W13Layout::interleaved})
      for (bool bias : {false, true})
        for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
          if (!is_gated(activation) && layout != W13Layout::gate_up) continue;
          MoeConfig moe = small_config(dtype);
          moe.activation = activation;
          moe.activation_params = test::typical_params(activation);
          moe.w13_layout = layout;
          moe.has_w13_bias = moe.has_w2_bias = bias;
          const ExpertCase c = make_expert_case(moe, 4, ++seed, -1, dtype);
          ASSERT_LT(rel_error(run(c), expected(c)), 1e-6)
              << name_of(activation) << " " << name_of(layout) << " " << name_of(dtype) << " bias " << bias;
        }
}

TEST(ReferenceStandard, TakesWeightsOfAnotherDtypeThanTheActivations) {
  for (DType activations : {DType::f32, DType::bf16, DType::f16})
    for (DType weights : {DType::f32, DType::bf16, DType::f16}) {
      MoeConfig moe = small_config(activations);
      moe.weight_dtype = weights;
      const ExpertCase c = make_expert_case(moe, 3, 7);
      EXPECT_LT(rel_error(run(c), expected(c)), 1e-6) << name_of(activations) << " x " << name_of(weights);
    }
}

/// Widths around the chunk of the dot product and sizes that models have; more rows than one wave holds.
TEST(ReferenceStandard, TakesAnySize) {
  const std::int64_t sizes[][4] = {{1, 1, 1, 1},    {7, 1, 70, 2},    {1, 7, 3, 1},
                                   {40, 24, 33, 3}, {513, 511, 2, 2}, {1408, 3, 2, 1}};
  for (const auto& [hidden, inner, num_tokens, top_k] : sizes) {
    MoeConfig moe = small_config();
    moe.hidden_size = hidden;
    moe.intermediate_size = inner;
    moe.top_k = top_k;
    const ExpertCase c = make_expert_case(moe, num_tokens, 11);
    EXPECT_LT(rel_error(run(c), expected(c)), 1e-6) << hidden << " " << inner << " " << num_tokens << " " << top_k;
  }
}

/// W = 0, so rows are the down bias alone and the sum over picks is weighted by whoever reduces: .25 * 1 + .75 * 2.
TEST(ReferenceStandard, AddsTheSecondBiasToEachRow) {
  MoeConfig moe = small_config();
  moe.num_experts = moe.top_k = 2;
  moe.has_w2_bias = true;
  ExpertCase c = make_expert_case(moe, 1, 1);
  std::memset(c.w2.view().data, 0, static_cast<std::size_t>(c.w2.view().bytes()));
  for (std::int64_t h = 0; h < 19; ++h) {
    test::set(c.w2_bias, {0, h}, 1.0);
    test::set(c.w2_bias, {1, h}, 2.0);
  }
  c.topk_ids = tensor_of(DType::i32, {1, 2}, {1, 0});
  const Tensor rows = run(c);
  EXPECT_EQ(test::at(rows, {0, 0, 5}), 2.0);
  EXPECT_EQ(test::at(rows, {0, 1, 5}), 1.0);
}

/// W13 = [1, 2, 3, 4], W2 = identity, x = 1 under each layout.
TEST(ReferenceStandard, ReadsTheLayoutThatTheWeightsHave) {
  MoeConfig moe;
  moe.num_experts = moe.top_k = moe.hidden_size = 1;
  moe.intermediate_size = 2;
  moe.dtype = moe.weight_dtype = DType::f32;
  const auto first_row = [&](W13Layout layout) {
    moe.w13_layout = layout;
    ExpertCase c = make_expert_case(moe, 1, 1);
    c.hidden_states = tensor_of(DType::f32, {1, 1}, {1});
    c.w13 = tensor_of(DType::f32, {1, 4, 1}, {1, 2, 3, 4});
    c.w2 = tensor_of(DType::f32, {1, 1, 2}, {1, 100});  // Both values in one: a + 100 b.
    c.weights.w13 = c.w13;
    c.weights.w2 = c.w2;
    c.topk_ids = tensor_of(DType::i32, {1, 1}, {0});
    return test::at(run(c), {0, 0, 0});
  };
  EXPECT_NEAR(first_row(W13Layout::gate_up), 2.1932 + 704.64, 0.02);
  EXPECT_NEAR(first_row(W13Layout::up_gate), 2.8577 + 785.61, 0.02);
  EXPECT_NEAR(first_row(W13Layout::interleaved), 1.4621 + 1143.09, 0.02);
}

/// expert_map [-1, -1, 0, 1]: the last global expert is local, so that reading the map at -1 would find one.
TEST(ReferenceStandard, EmptyRemoteAndStaleSlotsAreZeros) {
  MoeConfig moe = small_config();
  moe.num_experts = 4;
  moe.top_k = 2;
  ExpertCase c = make_expert_case(moe, 5, 3, 2);
  const Tensor map = tensor_of(DType::i32, {4}, {-1, -1, 0, 1});
  c.expert_map = ConstTensorView(map);
  c.topk_ids = tensor_of(DType::i32, {5, 2}, {2, 3, -1, -1, 0, -1, 1000000, 2, 4, -7});
  const Tensor rows = run(c);
  EXPECT_LT(rel_error(rows, expected(c)), 1e-6);
  for (const auto& [token, pick] : {std::pair{1, 0}, {1, 1}, {2, 0}, {2, 1}, {3, 0}, {4, 0}, {4, 1}})
    for (double v : values(rows.view().at(token).at(pick))) EXPECT_EQ(v, 0.0);
  EXPECT_NE(test::at(rows, {3, 1, 0}), 0.0);
}

TEST(ReferenceStandard, WithoutAMapIdsBeyondTheLocalExpertsAreEmpty) {
  ExpertCase c = make_expert_case(small_config(), 2, 3, 4);
  c.topk_ids = tensor_of(DType::i32, {2, 3}, {3, 4, 0, 5, 1, 1});
  EXPECT_LT(rel_error(run(c), expected(c)), 1e-6);
  const Tensor rows = run(c);
  EXPECT_EQ(test::at(rows, {0, 1, 0}), 0.0);
  EXPECT_EQ(values(rows.view().at(1).at(1)), values(rows.view().at(1).at(2)));  // Duplicates.
}

TEST(ReferenceStandard, TakesIdsOfSixtyFourBitsAndStridedInput) {
  ExpertCase c = make_expert_case(small_config(), 3, 5);
  const std::vector<double> direct = values(run(c));
  const Tensor wide = test::poisoned_tensor(DType::f32, {3, 2 * 19});
  for (std::int64_t m = 0; m < 3; ++m)
    for (std::int64_t h = 0; h < 19; ++h) test::set(wide, {m, 8 + h}, test::at(c.hidden_states, {m, h}));
  const Tensor ids = tensor_of(DType::i64, {3, 3}, values(c.topk_ids));

  const auto executor = make_inline_executor();
  const auto experts = make(c.problem);
  const auto packed = experts->pack(c.weights, Stream::cpu(*executor));
  const test::PoisonedArena memory([&](Arena& arena) { experts->take_buffers(arena, 3); });
  Arena arena = memory.arena();
  const ExpertsBuffers buffers = experts->take_buffers(arena, 3);
  ExpertsInput input;
  input.hidden_states = wide.view().narrow(1, 8, 19);
  input.topk_ids = ids;
  input.topk_weights = c.topk_weights;
  experts->apply(input, *packed, buffers, Stream::cpu(*executor));
  EXPECT_EQ(values(buffers.output), direct);
}

TEST(ReferenceStandard, NothingInIsNothingOut) {
  const ExpertCase c = make_expert_case(small_config(), 0, 1);
  EXPECT_EQ(run(c).view().numel(), 0);
}

TEST(ReferenceStandard, BitsDependOnNothingButTheRow) {
  MoeConfig moe = small_config(DType::bf16);
  moe.has_w13_bias = moe.has_w2_bias = true;
  const ExpertCase whole = make_expert_case(moe, 37, 5);
  const Tensor rows = run(whole, 2);
  EXPECT_TRUE(test::same_bytes(rows, run(whole, 2)));
  EXPECT_TRUE(test::same_bytes(rows, run(whole, 1)));
  for (std::int64_t m : {0, 17, 36}) {
    ExpertCase alone = whole;
    alone.hidden_states = tensor_of(moe.dtype, {1, 19}, values(whole.hidden_states.view().at(m)));
    alone.topk_ids = tensor_of(DType::i32, {1, 3}, values(whole.topk_ids.view().at(m)));
    EXPECT_TRUE(test::same_bytes(run(alone).view().at(0), rows.view().at(m))) << m;
  }
}

TEST(ReferenceStandard, ANanInOneRowStaysThere) {
  ExpertCase c = make_expert_case(small_config(), 3, 5);
  const Tensor clean = run(c);
  test::set(c.hidden_states, {1, 4}, NAN);
  const Tensor rows = run(c);
  EXPECT_TRUE(test::same_bytes(rows.view().at(0), clean.view().at(0)));
  EXPECT_TRUE(test::same_bytes(rows.view().at(2), clean.view().at(2)));
  EXPECT_TRUE(std::isnan(test::at(rows, {1, 0, 0})));
}

TEST(ReferenceStandard, InputsStayAsTheyWere) {
  const ExpertCase c = make_expert_case(small_config(), 3, 5);
  const auto before = std::tuple(values(c.hidden_states), values(c.topk_ids), values(c.topk_weights));
  run(c);
  EXPECT_EQ(before, std::tuple(values(c.hidden_states), values(c.topk_ids), values(c.topk_weights)));
}

TEST(ReferenceStandard, UpdatedWeightsEqualAFreshPack) {
  const auto executor = make_executor(2);
  const Stream stream = Stream::cpu(*executor);
  ExpertCase c = make_expert_case(small_config(DType::f16), 4, 5);
  const auto experts = make(c.problem);
  const auto packed = experts->pack(c.weights, stream);
  const Tensor before = test::run_standard(*experts, c, *packed, *executor);
  const ExpertCase other = make_expert_case(small_config(DType::f16), 4, 6);
  c.weights = other.weights;
  experts->update(*packed, c.weights, stream);
  const Tensor updated = test::run_standard(*experts, c, *packed, *executor);
  EXPECT_TRUE(test::same_bytes(updated, run(c)));
  EXPECT_FALSE(test::same_bytes(updated, before));
}

TEST(ReferenceStandard, RefusesWeightsOfAnotherPart) {
  const auto executor = make_inline_executor();
  const ExpertCase c = make_expert_case(small_config(), 1, 5);
  const auto other = test::make_experts(builtin_experts(), "experts/naive_batched", c.problem);
  const auto packed = other->pack(c.weights, Stream::cpu(*executor));
  try {
    test::run_standard(*make(c.problem), c, *packed, *executor);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("experts/naive_batched"), HasSubstr("experts/reference_standard")));
  }
  EXPECT_THROW(make(c.problem)->update(*packed, c.weights, Stream::cpu(*executor)), Error);
}

TEST(ReferenceStandard, RefusesInputOfAnotherShapeOrDtype) {
  const ExpertCase good = make_expert_case(small_config(), 2, 5);
  ExpertCase wrong = good;
  wrong.hidden_states = test::random_tensor(DType::f32, {2, 18}, 1);
  EXPECT_THROW(run(wrong), Error);
  wrong.hidden_states = test::random_tensor(DType::bf16, {2, 19}, 1);
  EXPECT_THROW(run(wrong), Error);
  wrong = good;
  wrong.topk_ids = test::random_tensor(DType::f32, {2, 3}, 1);
  EXPECT_THROW(run(wrong), Error);
}

TEST(ReferenceStandard, BuffersGrowWithTokensAndNeverShrink) {
  const auto experts = make(make_expert_case(small_config(), 1, 1).problem);
  std::int64_t last = -1;
  for (std::int64_t num_tokens = 0; num_tokens < 100; ++num_tokens) {
    Arena arena = Arena::measuring();
    experts->take_buffers(arena, num_tokens);
    EXPECT_GE(arena.peak(), last);
    last = arena.peak();
  }
}

}  // namespace
}  // namespace conclave
