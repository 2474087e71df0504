// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Each misuse has a message with the values.
#include "kernel/kernel_checks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conclave/error.hpp"
#include "support/message_of.hpp"
#include "support/tensors.hpp"

namespace conclave {
namespace {

using test::message_of;
using ::testing::HasSubstr;

TEST(KernelChecks, Matrix) {
  const Tensor t(DType::bf16, {4, 10});
  const ConstTensorView v = t;
  EXPECT_EQ(message_of([&] { check_matrix("x", v, 4, 10, DType::bf16); }), "no error");
  EXPECT_EQ(message_of([&] { check_matrix("x", v.narrow(1, 2, 5), 4, 5, DType::bf16); }), "no error");
  EXPECT_THAT(message_of([&] { check_matrix("x", v, 4, 9, DType::bf16); }),
              HasSubstr("x: given bf16[4, 10], expected bf16[4, 9]"));
  EXPECT_THAT(message_of([&] { check_matrix("x", v, 4, 10, DType::f32); }), HasSubstr("expected f32[4, 10]"));
  ConstTensorView strided = v.narrow(1, 0, 5);
  strided.strides[1] = 2;
  EXPECT_THAT(message_of([&] { check_matrix("x", strided, 4, 5, DType::bf16); }), HasSubstr("column stride 2"));
  EXPECT_EQ(message_of([&] { check_matrix("x", {nullptr, DType::bf16, {0, 10}}, 0, 10, DType::bf16); }), "no error");
  EXPECT_THAT(message_of([&] {
                check_matrix("x", {nullptr, DType::bf16, {2, 10}}, 2, 10, DType::bf16);
              }),
              HasSubstr("null data"));
}

// Case 5: a stale id far above E, and id == E.
TEST(KernelChecks, IdsNameTokenSlotValueAndRange) {
  EXPECT_EQ(message_of([] { check_ids(test::tensor_of(DType::i32, {2, 2}, {0, 3, -1, 2}), 4); }), "no error");
  EXPECT_THAT(message_of([] {
                check_ids(test::tensor_of(DType::i32, {2, 2}, {0, 1, 1000000, 2}), 4);
              }),
              HasSubstr("topk_ids[1, 0]: given 1000000, expected -1 or 0 to 3"));
  EXPECT_THAT(message_of([] {
                check_ids(test::tensor_of(DType::i64, {2, 2}, {0, 4, 1, 2}), 4);
              }),
              HasSubstr("topk_ids[0, 1]: given 4"));
  EXPECT_THAT(message_of([] { check_ids(test::tensor_of(DType::i32, {1, 1}, {-2}), 4); }), HasSubstr("given -2"));
}

TEST(KernelChecks, ExpertMap) {
  EXPECT_EQ(message_of([] { check_expert_map(test::tensor_of(DType::i32, {4}, {-1, 1, -1, 0}), 4, 2); }), "no error");
  EXPECT_THAT(message_of([] {
                check_expert_map(test::tensor_of(DType::i32, {4}, {-1, 2, -1, 0}), 4, 2);
              }),
              HasSubstr("expert_map[1]: given 2, expected -1 or 0 to 1"));
  EXPECT_THAT(message_of([] {
                check_expert_map(test::tensor_of(DType::i32, {3}, {0, 1, 2}), 4, 3);
              }),
              HasSubstr("expected contiguous i32[4]"));
}

TEST(KernelChecks, Aliasing) {
  const Tensor t(DType::f32, {4, 6});
  const ConstTensorView v = t;
  EXPECT_THAT(message_of([&] { check_aliasing(v, v, false); }), HasSubstr("overlaps"));
  EXPECT_EQ(message_of([&] { check_aliasing(v, v, true); }), "no error");
  EXPECT_EQ(message_of([&] { check_aliasing(v.narrow(0, 0, 2), v.narrow(0, 2, 2), false); }), "no error");
  EXPECT_THAT(message_of([&] { check_aliasing(v.narrow(0, 0, 3), v.narrow(0, 1, 3), true); }),
              HasSubstr("without being the same rows"));
}

}  // namespace
}  // namespace conclave
