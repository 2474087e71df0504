// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The oracle's own number formats, over every bit pattern.
#include "verify/element.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace conclave::verify_detail {
namespace {

TEST(Element, ReadsBf16AsTheUpperHalfOfF32) {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const auto stored = static_cast<std::uint16_t>(bits);
    const auto expected = static_cast<double>(std::bit_cast<float>(bits << 16));
    const double got = load(ConstTensorView(&stored, DType::bf16, {1}), 0);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(got)) << bits;
    } else {
      EXPECT_EQ(got, expected) << bits;
    }
  }
}

TEST(Element, EveryNarrowNumberSurvivesARoundTrip) {
  for (const DType dtype : {DType::bf16, DType::f16})
    for (unsigned bits = 0; bits < 0x10000; ++bits) {
      const auto stored = static_cast<std::uint16_t>(bits);
      const double value = load(ConstTensorView(&stored, dtype, {1}), 0);
      std::uint16_t back = 0;
      store(TensorView(&back, dtype, {1}), 0, value);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(load(ConstTensorView(&back, dtype, {1}), 0)));
      } else {
        EXPECT_EQ(back, stored) << name_of(dtype);
      }
    }
}

double rounded(DType dtype, double value) {
  std::uint16_t bits = 0;
  store(TensorView(&bits, dtype, {1}), 0, value);
  return load(ConstTensorView(&bits, dtype, {1}), 0);
}

TEST(Element, RoundsToTheNearestAndTiesToEven) {
  EXPECT_EQ(rounded(DType::bf16, 1 + 0x1p-8), 1);
  EXPECT_EQ(rounded(DType::bf16, 1 + 0x1.8p-7), 1 + 0x1p-6);
  EXPECT_EQ(rounded(DType::bf16, 1 + 0x1.001p-8), 1 + 0x1p-7);
  EXPECT_EQ(rounded(DType::f16, 1 + 0x1p-11), 1);
  EXPECT_EQ(rounded(DType::f16, 65519), 65504);
  EXPECT_TRUE(std::isinf(rounded(DType::f16, 65520)));
  EXPECT_EQ(rounded(DType::f16, 0x1p-25), 0);
  EXPECT_EQ(rounded(DType::f16, 0x1.8p-25), 0x1p-24);
  EXPECT_EQ(rounded(DType::f16, -0x1.ffcp-15), -0x1p-14);  // Carries into the normal numbers.
}

TEST(Element, CopiesKeepStridesAndPoisonTheGaps) {
  float memory[] = {1, 2, 9, 3, 4, 9};
  ConstTensorView view(memory, DType::f32, {2, 2});
  view.strides[0] = 3;
  TensorView copy;
  const Tensor owner = clone_strided(view, copy);
  EXPECT_EQ(copy.stride(0), 3);
  EXPECT_TRUE(bitwise_equal(copy, view));
  EXPECT_TRUE(std::isnan(owner.as<float>()[2]));
  EXPECT_EQ(to_doubles(clone(view)), (std::vector<double>{1, 2, 3, 4}));
  const std::uint64_t before = hash_of(view);
  memory[2] = 7;
  EXPECT_EQ(hash_of(view), before);
  memory[4] = 5;
  EXPECT_NE(hash_of(view), before);
}

}  // namespace
}  // namespace conclave::verify_detail
