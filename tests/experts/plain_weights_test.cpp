// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
#include "experts/plain_weights.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conclave/error.hpp"
#include "experts/weights_check.hpp"
#include "support/expert_case.hpp"

namespace conclave::experts {
namespace {

using test::ExpertCase;
using test::make_expert_case;
using test::small_config;
using test::values;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// The message with which check_weights refuses `c`.
std::string refusal(const ExpertCase& c) {
  try {
    check_weights(c.problem, c.weights);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

MoeConfig biased_config() {
  MoeConfig moe = small_config();
  moe.has_w13_bias = moe.has_w2_bias = true;
  return moe;
}

TEST(CheckWeights, TakesWhatFits) {
  EXPECT_EQ(refusal(make_expert_case(biased_config(), 1, 1)), "accepted");
  EXPECT_EQ(refusal(make_expert_case(biased_config(), 1, 1, 2, DType::bf16)), "accepted");
  EXPECT_EQ(refusal(make_expert_case(small_config(), 1, 1, 0)), "accepted");
}

TEST(CheckWeights, NamesExpectedAndGivenRows) {
  ExpertCase c = make_expert_case(small_config(), 1, 1);
  c.problem.moe.activation = Activation::relu2_no_mul;  // Expects I rows, is given 2I.
  EXPECT_THAT(refusal(c), AllOf(HasSubstr("w13"), HasSubstr("[5, 22, 19]"), HasSubstr("[5, 11, 19]")));
  ExpertCase d = make_expert_case(small_config(), 1, 1);
  d.weights.w2 = d.weights.w2.narrow(1, 0, 18);
  EXPECT_THAT(refusal(d), AllOf(HasSubstr("w2"), HasSubstr("[5, 18, 11]"), HasSubstr("[5, 19, 11]")));
  ExpertCase more = make_expert_case(small_config(), 1, 1, 6);
  EXPECT_THAT(refusal(more), AllOf(HasSubstr("6 local experts"), HasSubstr("5")));
}

TEST(CheckWeights, NamesExpectedAndGivenDtype) {
  ExpertCase c = make_expert_case(small_config(DType::f32), 1, 1);
  c.problem.moe.weight_dtype = DType::bf16;
  EXPECT_THAT(refusal(c), AllOf(HasSubstr("w13"), HasSubstr("f32"), HasSubstr("bf16")));
  ExpertCase b = make_expert_case(biased_config(), 1, 1, -1, DType::f64);
  EXPECT_THAT(refusal(b), AllOf(HasSubstr("w13_bias"), HasSubstr("f64")));
}

TEST(CheckWeights, RefusesMissingAndUnexpectedTensors) {
  ExpertCase missing = make_expert_case(biased_config(), 1, 1);
  missing.weights.w2_bias.reset();
  EXPECT_THAT(refusal(missing), AllOf(HasSubstr("w2_bias"), HasSubstr("missing"), HasSubstr("[5, 19]")));
  ExpertCase extra = make_expert_case(biased_config(), 1, 1);
  extra.problem.moe.has_w13_bias = false;
  EXPECT_THAT(refusal(extra), AllOf(HasSubstr("w13_bias"), HasSubstr("none")));
  ExpertCase scale = make_expert_case(small_config(), 1, 1);
  scale.weights.a2_scale = scale.weights.w2;
  EXPECT_THAT(refusal(scale), HasSubstr("a2_scale"));
}

TEST(CheckWeights, RefusesStridedColumnsAndNullData) {
  ExpertCase strided = make_expert_case(small_config(), 1, 1);
  strided.weights.w2.strides = {19 * 11, 1, 19};  // A transposed view.
  EXPECT_THAT(refusal(strided), AllOf(HasSubstr("w2"), HasSubstr("stride 19")));
  ExpertCase null = make_expert_case(small_config(), 1, 1);
  null.weights.w13.data = nullptr;
  EXPECT_THAT(refusal(null), HasSubstr("null"));
}

/// w13 and w2 as views into larger tensors: expert stride and row stride are not those of the shape.
TEST(PlainWeights, CopiesStridedViews) {
  ExpertCase c = make_expert_case(small_config(DType::bf16), 1, 3);
  const Tensor wide = test::random_tensor(DType::bf16, {5, 2, 22, 40}, 9);
  ConstTensorView view = wide.view().narrow(1, 1, 1).narrow(3, 3, 19);
  view.rank = 3;
  view.shape = {5, 22, 19};
  view.strides = {2 * 22 * 40, 40, 1};
  c.weights.w13 = view;
  const PlainWeights packed("experts/x", c.problem, c.weights);
  EXPECT_EQ(values(packed.w13()), values(view));
  EXPECT_TRUE(packed.w13().is_contiguous());
  EXPECT_EQ(values(packed.w2()), values(c.w2));
  EXPECT_EQ(packed.bytes(), 2 * (5 * 22 * 19 + 5 * 19 * 11));
}

TEST(PlainWeights, GivesUpEveryByteOnceAfterCopyingIt) {
  ExpertCase c = make_expert_case(small_config(), 1, 3);
  const std::vector<double> before = values(c.w13);
  std::int64_t bytes = 0;
  std::int64_t calls = 0;
  c.weights.give_up = [&](const void* begin, std::int64_t count) {
    std::memset(const_cast<void*>(begin), 0xFF, static_cast<std::size_t>(count));
    bytes += count;
    ++calls;
  };
  const PlainWeights packed("experts/x", c.problem, c.weights);
  EXPECT_EQ(values(packed.w13()), before);
  EXPECT_EQ(bytes, c.w13.view().bytes() + c.w2.view().bytes());
  EXPECT_EQ(calls, 10);  // Five experts, two matrices.
}

TEST(PlainWeights, AssignKeepsAddressesAndTakesTheNewValues) {
  const ExpertCase old_case = make_expert_case(biased_config(), 1, 1);
  const ExpertCase new_case = make_expert_case(biased_config(), 1, 2);
  PlainWeights packed("experts/x", old_case.problem, old_case.weights);
  const void* addresses[] = {packed.w13().data, packed.w2().data, packed.w13_bias().view().data};
  packed.assign(new_case.problem, new_case.weights);
  EXPECT_EQ(packed.w13().data, addresses[0]);
  EXPECT_EQ(packed.w2().data, addresses[1]);
  EXPECT_EQ(packed.w13_bias().view().data, addresses[2]);
  EXPECT_EQ(values(packed.w13()), values(new_case.w13));
  EXPECT_EQ(values(packed.w2_bias()), values(new_case.w2_bias));
  const ExpertCase fewer = make_expert_case(biased_config(), 1, 2, 4);
  EXPECT_THROW(packed.assign(fewer.problem, fewer.weights), Error);
}

/// Partial outputs of tensor parallel ranks are summed, so only one may add the bias of the second product.
TEST(PlainWeights, OnlyTheFirstTensorParallelRankHoldsTheSecondBias) {
  ExpertCase c = make_expert_case(biased_config(), 1, 1);
  c.problem.parallel.tp_size = 2;
  EXPECT_TRUE(bool(PlainWeights("experts/x", c.problem, c.weights).w2_bias()));
  c.problem.parallel.tp_rank = 1;
  EXPECT_FALSE(bool(PlainWeights("experts/x", c.problem, c.weights).w2_bias()));
  EXPECT_TRUE(bool(PlainWeights("experts/x", c.problem, c.weights).w13_bias()));
}

TEST(PackedAs, RefusesAnotherPartsLayoutNamingBoth) {
  const ExpertCase c = make_expert_case(small_config(), 1, 1);
  const PlainWeights packed("experts/one", c.problem, c.weights);
  const PackedWeights& base = packed;
  EXPECT_EQ(&packed_as<const PlainWeights>(base, "experts/one"), &packed);
  try {
    packed_as<const PlainWeights>(base, "experts/two");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("experts/one"), HasSubstr("experts/two")));
  }
}

}  // namespace
}  // namespace conclave::experts
