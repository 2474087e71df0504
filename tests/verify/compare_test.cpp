// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The two error measures, on values that can be checked by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "conclave/error.hpp"
#include "conclave/verify.hpp"

namespace conclave {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

ConstTensorView row(const float* values, std::int64_t count) {
  return ConstTensorView(values, DType::f32, {1, count});
}

TEST(Compare, IsTheNormOfTheDifferenceOverTheNormOfTheSecond) {
  const float a[] = {3, 4}, b[] = {3, 0};
  EXPECT_DOUBLE_EQ(relative_error(row(a, 2), row(b, 2)), 4.0 / 3.0);
  EXPECT_DOUBLE_EQ(relative_error(row(b, 2), row(a, 2)), 4.0 / 5.0);
  EXPECT_DOUBLE_EQ(max_abs_error(row(a, 2), row(b, 2)), 4.0);
}

TEST(Compare, ZeroAgainstZeroIsZeroAndAgainstAnythingElseInfinite) {
  const float zero[] = {0, 0}, one[] = {0, 1};
  EXPECT_EQ(relative_error(row(zero, 2), row(zero, 2)), 0);
  EXPECT_TRUE(std::isinf(relative_error(row(one, 2), row(zero, 2))));
  EXPECT_EQ(relative_error(row(zero, 2), row(one, 2)), 1);
  EXPECT_EQ(relative_error(row(zero, 0), row(zero, 0)), 0);
}

TEST(Compare, NanAgreesOnlyWithNan) {
  const float a[] = {kNan, 1}, b[] = {kNan, 1}, c[] = {2, 1};
  EXPECT_EQ(relative_error(row(a, 2), row(b, 2)), 0);
  EXPECT_EQ(max_abs_error(row(a, 2), row(b, 2)), 0);
  EXPECT_TRUE(std::isinf(relative_error(row(a, 2), row(c, 2))));
  EXPECT_TRUE(std::isinf(relative_error(row(c, 2), row(a, 2))));
  EXPECT_TRUE(std::isinf(max_abs_error(row(a, 2), row(c, 2))));
  EXPECT_TRUE(std::isinf(max_abs_error(row(c, 2), row(a, 2))));
}

TEST(Compare, InfinityAgreesOnlyWithTheSameInfinity) {
  const float a[] = {kInfinity, 1}, b[] = {kInfinity, 1}, c[] = {-kInfinity, 1}, d[] = {1, 1};
  EXPECT_EQ(relative_error(row(a, 2), row(b, 2)), 0);
  EXPECT_TRUE(std::isinf(relative_error(row(a, 2), row(c, 2))));
  EXPECT_TRUE(std::isinf(relative_error(row(a, 2), row(d, 2))));
  EXPECT_TRUE(std::isinf(relative_error(row(d, 2), row(a, 2))));
}

TEST(Compare, ReadsEveryComputeTypeAndAnyStrides) {
  const std::uint16_t bf16[] = {0x3f80, 0x7fff, 0xc000, 0x7fff};  // 1, NaN, -2, NaN: the NaN lie between.
  const std::uint16_t f16[] = {0x3c00, 0xc000};                   // 1, -2
  ConstTensorView strided(bf16, DType::bf16, {2, 1});
  strided.strides[0] = 2;
  const ConstTensorView dense(f16, DType::f16, {2, 1});
  EXPECT_EQ(max_abs_error(strided, dense), 0);
  const std::uint16_t subnormal[] = {0x0001, 0x03ff};
  const double values[] = {0x1p-24, 1023 * 0x1p-24};
  EXPECT_EQ(max_abs_error(ConstTensorView(subnormal, DType::f16, {2}), ConstTensorView(values, DType::f64, {2})), 0);
}

TEST(Compare, RefusesDifferentShapes) {
  const float a[] = {1, 2, 3, 4};
  EXPECT_THROW(relative_error(ConstTensorView(a, DType::f32, {2, 2}), ConstTensorView(a, DType::f32, {4})), Error);
  EXPECT_THROW(max_abs_error(row(a, 2), row(a, 3)), Error);
}

}  // namespace
}  // namespace conclave
