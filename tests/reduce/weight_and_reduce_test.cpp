// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The four kinds as a set, and the two that do not sum: delegate and no_op.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conclave/error.hpp"
#include "conclave/reduce.hpp"
#include "support/tensors.hpp"

namespace conclave {
namespace {

using test::values;
using ::testing::HasSubstr;

ReduceInput rows_only(const Tensor& rows) {
  ReduceInput input;
  input.rows = rows;
  return input;
}

TEST(WeightAndReduce, EveryKindIsItself) {
  for (WeightAndReduceKind kind : {WeightAndReduceKind::delegate, WeightAndReduceKind::no_op,
                                   WeightAndReduceKind::contiguous, WeightAndReduceKind::naive_batched})
    EXPECT_EQ(weight_and_reduce(kind).kind(), kind);
}

TEST(Delegate, HasNothingToApply) {
  const auto executor = make_inline_executor();
  const Tensor rows = test::random_tensor(DType::f32, {2, 3}, 1);
  const Tensor out = test::poisoned_tensor(DType::f32, {2, 3});
  const auto& delegate = weight_and_reduce(WeightAndReduceKind::delegate);
  EXPECT_THROW(delegate.apply(rows_only(rows), out, Stream::cpu(*executor)), Error);
}

TEST(NoOp, CopiesToAnotherOutputAndRoundsOnce) {
  const auto executor = make_executor(2);
  const Stream stream = Stream::cpu(*executor);
  const auto& no_op = weight_and_reduce(WeightAndReduceKind::no_op);
  const Tensor rows = test::random_tensor(DType::f32, {70, 601}, 1);
  const Tensor same = test::poisoned_tensor(DType::f32, {70, 601});
  no_op.apply(rows_only(rows), same, stream);
  EXPECT_TRUE(test::same_bytes(rows, same));
  const Tensor narrow = test::poisoned_tensor(DType::bf16, {70, 601});
  no_op.apply(rows_only(rows), narrow, stream);
  EXPECT_EQ(values(narrow), values(test::tensor_of(DType::bf16, {70, 601}, values(rows))));
}

TEST(NoOp, LeavesRowsThatAreTheOutput) {
  const auto executor = make_inline_executor();
  const Tensor rows = test::random_tensor(DType::f16, {3, 5}, 1);
  const std::vector<double> before = values(rows);
  weight_and_reduce(WeightAndReduceKind::no_op).apply(rows_only(rows), rows, Stream::cpu(*executor));
  EXPECT_EQ(values(rows), before);
}

TEST(NoOp, WritesAStridedOutput) {
  const auto executor = make_inline_executor();
  const Tensor rows = test::random_tensor(DType::f32, {3, 5}, 1);
  const Tensor wide = Tensor(DType::f32, {3, 9});
  const TensorView out = wide.view().narrow(1, 2, 5);
  weight_and_reduce(WeightAndReduceKind::no_op).apply(rows_only(rows), out, Stream::cpu(*executor));
  EXPECT_EQ(values(out), values(rows));
  EXPECT_EQ(test::at(wide, {1, 7}), 0.0);
}

TEST(NoOp, RefusesAnotherShape) {
  const auto executor = make_inline_executor();
  const Tensor rows = test::random_tensor(DType::f32, {3, 5}, 1);
  const Tensor out = Tensor(DType::f32, {3, 6});
  try {
    weight_and_reduce(WeightAndReduceKind::no_op).apply(rows_only(rows), out, Stream::cpu(*executor));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("f32[3, 6]"));
  }
}

}  // namespace
}  // namespace conclave
