// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// finish(): the plain output of an open one, for readers that do not fuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/message_of.hpp"
#include "tail/tail_case.hpp"

namespace conclave {
namespace {

using test::make_tail_case;
using test::TailCase;
using test::TailShape;
using ::testing::HasSubstr;

class Finish : public ::testing::Test {
 protected:
  Tensor run(const MoeOutput& open, const TailShape& s, DType out = DType::f32) {
    Tensor output = test::poisoned_tensor(out, {s.num_tokens, s.hidden_size});
    finish(open, output, Stream::cpu(*executor_));
    return output;
  }
  double error(const MoeOutput& open, const TailShape& s) {
    return test::rel_error(run(open, s), test::oracle_partial(open, s.num_tokens, s.hidden_size));
  }
  std::unique_ptr<Executor> executor_ = make_executor(2);
};

TEST_F(Finish, SumsPicksScalesAndAddsShared) {
  for (DType rows : {DType::f32, DType::bf16, DType::f16})
    for (DType weights : {DType::f32, DType::bf16, DType::f16}) {
      const TailShape s{.rows = rows, .weights = weights, .dtype = rows};
      const TailCase c = make_tail_case(s, 3);
      MoeOutput open = c.open();
      open.routed_scaling_factor = 2.5;
      EXPECT_LT(error(open, s), 1e-6) << name_of(rows) << " " << name_of(weights);
      open.shared_output.reset();
      EXPECT_LT(error(open, s), 1e-6) << "without shared";
    }
}

TEST_F(Finish, RoundsOnce) {
  const TailShape s;
  const TailCase c = make_tail_case(s, 5);
  const Tensor wide = run(c.open(), s);
  const Tensor narrow = run(c.open(), s, DType::bf16);
  for (std::int64_t i = 0; i < wide.view().numel(); ++i)
    ASSERT_EQ(narrow.as<std::uint16_t>()[i], test::encode(wide.as<float>()[i], test::kBf16));
}

/// Scaled by two in the weights, or by the factor of the output: the same; by both: another result.
TEST_F(Finish, AppliesTheFactorWhereItIs) {
  const TailShape s;
  TailCase c = make_tail_case(s, 7);
  MoeOutput on_output = c.open();
  on_output.routed_scaling_factor = 2.0;
  const Tensor expected = run(on_output, s);
  TailCase folded = make_tail_case(s, 7);
  for (std::int64_t i = 0; i < folded.weights.view().numel(); ++i) folded.weights.as<float>()[i] *= 2.0F;
  EXPECT_TRUE(test::same_bytes(run(folded.open(), s), expected));
  MoeOutput twice = folded.open();
  twice.routed_scaling_factor = 2.0;
  EXPECT_GT(test::rel_error(run(twice, s), test::values(expected)), 0.1);
}

/// The scale touches the routed sum and not the shared expert.
TEST_F(Finish, DoesNotScaleTheSharedExpert) {
  TailCase c = make_tail_case({.num_tokens = 1, .hidden_size = 2, .top_k = 1}, 1);
  c.map.as<std::int32_t>()[0] = 3;
  test::set(c.rows, {3, 0}, 10);
  test::set(c.rows, {3, 1}, 20);
  c.weights.as<float>()[0] = 0.5F;
  c.shared = test::tensor_of(DType::f32, {1, 2}, {1, 2});
  MoeOutput open = c.open();
  open.routed_scaling_factor = 3;
  EXPECT_EQ(test::values(run(open, c.shape)), (std::vector<double>{16, 32}));
}

TEST_F(Finish, SkipsZeroWeightsAndRemotePicks) {
  const TailShape s;
  TailCase c = make_tail_case(s, 9);
  // The row that a zero weight names is NaN; token 2 has nothing here at all, and its shared output is missing.
  for (std::int64_t h = 0; h < s.hidden_size; ++h)
    test::set(c.rows, {static_cast<std::int64_t>(test::at(c.map, {1, 0})), h}, NAN);
  c.weights.as<float>()[1 * s.top_k] = 0.0F;
  for (std::int64_t k = 0; k < s.top_k; ++k) c.map.as<std::int32_t>()[2 * s.top_k + k] = -1;
  MoeOutput open = c.open();
  open.shared_output.reset();
  const Tensor output = run(open, s);
  EXPECT_LT(error(open, s), 1e-6);
  for (std::int64_t h = 0; h < s.hidden_size; ++h) {
    ASSERT_TRUE(std::isfinite(test::at(output, {1, h})));
    ASSERT_EQ(test::at(output, {2, h}), 0.0);
  }
}

/// Two picks of one token may share an expert; both rows, or the same row twice, are summed.
TEST_F(Finish, SumsDuplicates) {
  const TailShape s;
  TailCase c = make_tail_case(s, 11);
  c.map.as<std::int32_t>()[0] = c.map.as<std::int32_t>()[2];
  EXPECT_LT(error(c.open(), s), 1e-6);
}

TEST_F(Finish, TakesRoutedThatIsFinalizedAndStrided) {
  const TailShape s;
  const TailCase c = make_tail_case(s, 13);
  const Tensor wide = test::random_tensor(DType::bf16, {s.num_tokens, s.hidden_size + 9}, 14);
  MoeOutput open;
  open.routed = wide.view().narrow(1, 4, s.hidden_size);
  open.shared_output = c.shared.view();
  open.routed_scaling_factor = 0.75;
  Tensor out = test::poisoned_tensor(DType::f32, {s.num_tokens, s.hidden_size + 3});
  finish(open, out.view().narrow(1, 0, s.hidden_size), Stream::cpu(*executor_));
  EXPECT_LT(
      test::rel_error(out.view().narrow(1, 0, s.hidden_size), test::oracle_partial(open, s.num_tokens, s.hidden_size)),
      1e-6);
  EXPECT_TRUE(std::isnan(test::at(out, {0, s.hidden_size})));
}

TEST_F(Finish, RowsDoNotDependOnTheBatchOrTheThreads) {
  const TailShape s{.num_tokens = 65};
  const TailCase c = make_tail_case(s, 15);
  const Tensor all = run(c.open(), s);
  EXPECT_TRUE(test::same_bytes(run(c.open(), s), all));
  const auto one = make_inline_executor();
  for (std::int64_t t : {0, 1, 31, 64}) {
    MoeOutput row = c.open();
    row.unfinalized->expert_weights = c.weights.view().narrow(0, t, 1);
    row.unfinalized->expanded_idx_to_permuted_idx = c.map.view().narrow(0, t, 1);
    row.shared_output = c.shared.view().narrow(0, t, 1);
    Tensor alone = test::poisoned_tensor(DType::f32, {1, s.hidden_size});
    finish(row, alone, Stream::cpu(*one));
    EXPECT_TRUE(test::same_bytes(alone, all.view().narrow(0, t, 1)));
  }
}

TEST_F(Finish, TakesNoTokens) {
  MoeOutput open;
  open.routed = TensorView(nullptr, DType::f32, {0, 5});
  finish(open, TensorView(nullptr, DType::f32, {0, 5}), Stream::cpu(*executor_));
}

TEST_F(Finish, RefusesWhatBreaksTheContract) {
  const TailShape s;
  TailCase c = make_tail_case(s, 17);
  const auto message = [&](const MoeOutput& open) { return test::message_of([&] { run(open, s); }); };
  EXPECT_THAT(message(MoeOutput{}), HasSubstr("given no routed and no unfinalized, expected exactly one"));
  MoeOutput both = c.open();
  both.routed = c.shared.view();
  EXPECT_THAT(message(both), HasSubstr("given a routed and an unfinalized"));
  MoeOutput wide = c.open();
  wide.unfinalized->gemm2_permuted = ConstTensorView(c.rows.view()).narrow(1, 0, s.hidden_size - 1);
  EXPECT_THAT(message(wide), HasSubstr("gemm2_permuted"));
  const Tensor padded(DType::f32, {4, s.hidden_size + 1});
  MoeOutput strided = c.open();
  strided.unfinalized->gemm2_permuted = padded.view().narrow(1, 0, s.hidden_size);
  EXPECT_THAT(message(strided), HasSubstr("expected densely packed rows of 521"));
  MoeOutput shared = c.open();
  shared.shared_output = c.shared.view().narrow(0, 0, 2);
  EXPECT_THAT(message(shared), HasSubstr("shared_output: given f32[2, 521], expected [7, 521]"));
  MoeOutput factor = c.open();
  factor.routed_scaling_factor = NAN;
  EXPECT_THAT(message(factor), HasSubstr("routed_scaling_factor"));
  c.map.as<std::int32_t>()[4] = 26;
  EXPECT_THAT(message(c.open()), HasSubstr("given row 26 for token 1, pick 1, expected -1 or below 26"));
}

}  // namespace
}  // namespace conclave
