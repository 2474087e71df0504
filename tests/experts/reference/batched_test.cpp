// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Both batched parts (experts/reference_batched and experts/naive_batched) against three loops in double.
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

constexpr const char* kParts[] = {"experts/reference_batched", "experts/naive_batched"};

std::unique_ptr<ModularExperts> make(const std::string& name, const Problem& problem) {
  std::unique_ptr<Experts> part = test::make_experts(builtin_experts(), name, problem);
  return std::unique_ptr<ModularExperts>(dynamic_cast<ModularExperts*>(part.release()));
}

/// Batched input: `c.hidden_states` is [E_local, T, H]; rows behind the counts are poisoned by the caller.
Tensor run(const std::string& name, const ExpertCase& c, const std::vector<double>& counts, int num_threads = 2) {
  const auto executor = make_executor(num_threads);
  const auto experts = make(name, c.problem);
  const auto packed = experts->pack(c.weights, Stream::cpu(*executor));
  const std::int64_t max_rows = c.hidden_states.view().size(1);
  const Tensor count_tensor = tensor_of(DType::i32, {static_cast<std::int64_t>(counts.size())}, counts);
  const test::PoisonedArena memory([&](Arena& arena) { experts->take_buffers(arena, max_rows); });
  Arena arena = memory.arena();
  const ExpertsBuffers buffers = experts->take_buffers(arena, max_rows);
  ExpertsInput input;
  input.hidden_states = c.hidden_states;
  input.expert_tokens = ExpertTokens{count_tensor, nullptr};
  experts->apply(input, *packed, buffers, Stream::cpu(*executor));
  EXPECT_TRUE(memory.guard_intact());
  Tensor copy(buffers.output.dtype, {buffers.output.size(0), max_rows, buffers.output.size(2)});
  if (copy.view().bytes() > 0)
    std::memcpy(copy.view().data, buffers.output.data, static_cast<std::size_t>(copy.view().bytes()));
  return copy;
}

/// E_local experts with T slots each, of which `counts` are valid and the rest NaN.
ExpertCase batched_case(const MoeConfig& moe, std::int64_t max_rows, const std::vector<double>& counts,
                        std::uint64_t seed, DType bias = DType::f32) {
  ExpertCase c = make_expert_case(moe, 1, seed, -1, bias);
  const auto num_local = static_cast<std::int64_t>(counts.size());
  c.hidden_states = test::random_tensor(moe.dtype, {num_local, max_rows, moe.expert_width()}, seed);
  for (std::int64_t e = 0; e < num_local; ++e)
    for (auto row = static_cast<std::int64_t>(counts[static_cast<std::size_t>(e)]); row < max_rows; ++row)
      test::poison(c.hidden_states.view().at(e).at(row));
  return c;
}

std::vector<double> expected(const ExpertCase& c, const std::vector<double>& counts) {
  std::vector<double> out;
  const ConstTensorView x = c.hidden_states;
  for (std::int64_t e = 0; e < x.size(0); ++e)
    for (std::int64_t row = 0; row < x.size(1); ++row) {
      const std::vector<double> y = static_cast<double>(row) < counts[static_cast<std::size_t>(e)]
                                        ? test::oracle_expert(c.moe(), c.weights, e, values(x.at(e).at(row)))
                                        : std::vector<double>(static_cast<std::size_t>(x.size(2)), 0.0);
      out.insert(out.end(), y.begin(), y.end());
    }
  return out;
}

TEST(BatchedExperts, DescribeThemselves) {
  const Problem problem = make_expert_case(small_config(), 1, 1).problem;
  for (const char* name : kParts) {
    const auto experts = make(name, problem);
    EXPECT_EQ(experts->name(), name);
    EXPECT_EQ(experts->activation_format(), ActivationFormat::batched_experts);
    EXPECT_EQ(experts->output_kind(), ExpertOutputKind::unreduced_batched);
  }
  EXPECT_EQ(make(kParts[0], problem)->finalize_weight_and_reduce(), WeightAndReduceKind::delegate);
  EXPECT_EQ(make(kParts[1], problem)->finalize_weight_and_reduce(), WeightAndReduceKind::naive_batched);
}

TEST(BatchedExperts, AgreeWithDoubleArithmeticForEveryFormula) {
  const std::vector<double> counts = {0, 4, 2, 0, 1};
  std::uint64_t seed = 0;
  for (const char* name : kParts)
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
            const ExpertCase c = batched_case(moe, 4, counts, ++seed, dtype);
            ASSERT_LT(rel_error(run(name, c, counts), expected(c, counts)), 2e-6)
                << name << " " << name_of(activation) << " " << name_of(layout) << " " << name_of(dtype);
          }
}

/// Counts [0, 5, 0, 3, 0] and a poisoned tail: zeros behind the valid rows, no NaN anywhere.
TEST(BatchedExperts, RowsBehindTheCountsAreZeros) {
  const std::vector<double> counts = {0, 5, 0, 3, 0};
  for (const char* name : kParts) {
    const ExpertCase c = batched_case(small_config(), 7, counts, 3);
    const Tensor out = run(name, c, counts);
    for (double v : values(out)) ASSERT_FALSE(std::isnan(v));
    EXPECT_LT(rel_error(out, expected(c, counts)), 2e-6);
    EXPECT_EQ(test::at(out, {1, 5, 0}), 0.0);
  }
}

TEST(BatchedExperts, MixedDtypes) {
  const std::vector<double> counts = {1, 2, 3, 0, 2};
  for (const char* name : kParts) {
    MoeConfig moe = small_config(DType::f16);
    moe.weight_dtype = DType::bf16;
    const ExpertCase c = batched_case(moe, 3, counts, 8);
    EXPECT_LT(rel_error(run(name, c, counts), expected(c, counts)), 2e-6) << name;
  }
}

TEST(BatchedExperts, EmptyInputAndEmptyRankAreLegal) {
  for (const char* name : kParts) {
    const std::vector<double> none(5, 0.0);
    EXPECT_EQ(run(name, batched_case(small_config(), 0, none, 1), none).view().numel(), 0);
    ExpertCase rank = batched_case(small_config(), 2, {}, 1);
    rank.problem.parallel = make_parallel(7, 6, 1, 0, 1, 0, 1, true, All2All::none);  // The last of 7 ranks, 5 experts.
    rank.w13 = Tensor(DType::f32, {0, 22, 19});
    rank.w2 = Tensor(DType::f32, {0, 19, 11});
    rank.weights.w13 = rank.w13;
    rank.weights.w2 = rank.w2;
    EXPECT_EQ(run(name, rank, {}).view().numel(), 0);
  }
}

TEST(BatchedExperts, BitsDependOnNothingButTheRow) {
  const std::vector<double> counts = {9, 1, 30, 0, 2};
  for (const char* name : kParts) {
    const ExpertCase whole = batched_case(small_config(DType::bf16), 30, counts, 5);
    const Tensor out = run(name, whole, counts);
    EXPECT_TRUE(test::same_bytes(out, run(name, whole, counts)));
    EXPECT_TRUE(test::same_bytes(out, run(name, whole, counts, 1)));
    ExpertCase alone = whole;
    alone.hidden_states = test::poisoned_tensor(DType::bf16, {5, 1, 19});
    for (std::int64_t h = 0; h < 19; ++h)
      test::set(alone.hidden_states, {2, 0, h}, test::at(whole.hidden_states, {2, 29, h}));
    const Tensor row = run(name, alone, {0, 0, 1, 0, 0});
    EXPECT_TRUE(test::same_bytes(row.view().at(2).at(0), out.view().at(2).at(29))) << name;
  }
}

TEST(BatchedExperts, RefuseInputsThatDoNotFit) {
  const std::vector<double> counts = {1, 1, 1, 1, 1};
  for (const char* name : kParts) {
    const ExpertCase good = batched_case(small_config(), 2, counts, 5);
    EXPECT_THROW(run(name, good, {1, 1}), Error);  // Counts of fewer experts.
    ExpertCase flat = good;
    flat.hidden_states = test::random_tensor(DType::f32, {4, 2, 19}, 1);
    EXPECT_THROW(run(name, flat, counts), Error);
  }
}

}  // namespace
}  // namespace conclave
