// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Views: strides, sub-views, and what errors print.
#include "conclave/tensor.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "conclave/error.hpp"

namespace conclave {
namespace {

TEST(TensorView, IsRowMajorAndKnowsContiguity) {
  std::vector<float> data(2 * 3 * 5);
  const TensorView v(data.data(), DType::f32, {2, 3, 5});
  EXPECT_EQ(v.stride(0), 15);
  EXPECT_EQ(v.stride(1), 5);
  EXPECT_EQ(v.stride(-1), 1);
  EXPECT_EQ(v.numel(), 30);
  EXPECT_TRUE(v.is_contiguous());
  EXPECT_FALSE(v.narrow(2, 1, 3).is_contiguous());
  EXPECT_TRUE(v.narrow(0, 1, 1).is_contiguous());
}

TEST(TensorView, AtAndNarrowPointAtTheRightElement) {
  std::vector<float> data(4 * 6);
  std::iota(data.begin(), data.end(), 0.0F);
  const ConstTensorView v(data.data(), DType::f32, {4, 6});
  EXPECT_EQ(v.at(2).as<float>()[1], 13.0F);
  const ConstTensorView part = v.narrow(0, 1, 2).narrow(1, 3, 2);
  EXPECT_EQ(part.at(1).as<float>()[0], 15.0F);
  EXPECT_EQ(part.size(0), 2);
  EXPECT_EQ(part.size(1), 2);
}

// Case 119: gate and up as two views of a packed w13 keep the expert stride of the whole.
TEST(TensorView, NarrowKeepsTheExpertStride) {
  std::vector<float> w13(3 * 8 * 2);
  const ConstTensorView up = ConstTensorView(w13.data(), DType::f32, {3, 8, 2}).narrow(1, 4, 4);
  EXPECT_EQ(up.stride(0), 16);
  EXPECT_EQ(up.at(1).as<float>() - w13.data(), 16 + 8);
}

TEST(TensorView, PrintsShapeAndStrides) {
  std::vector<std::uint16_t> data(64);
  const ConstTensorView v(data.data(), DType::bf16, {4, 16});
  EXPECT_EQ(to_string(v), "bf16[4, 16]");
  EXPECT_EQ(to_string(v.narrow(1, 0, 8)), "bf16[4, 8] strides [16, 1]");
  EXPECT_EQ(to_string(Device{DeviceType::cuda, 3}), "cuda:3");
}

TEST(Tensor, OwnsZeroedSharedMemory) {
  Tensor t(DType::f32, {3, 5});
  for (int i = 0; i < 15; ++i) EXPECT_EQ(t.as<float>()[i], 0.0F);
  const Tensor copy = t;
  t.as<float>()[4] = 2.0F;
  EXPECT_EQ(copy.as<float>()[4], 2.0F);
}

TEST(Tensor, RefusesBadShapes) {
  EXPECT_THROW(Tensor(DType::f32, {1, 1, 1, 1, 1, 1}), Error);
  EXPECT_THROW(Tensor(DType::f32, {2, -1}), Error);
  EXPECT_EQ(Tensor(DType::f32, {0, 7}).view().numel(), 0);
}

}  // namespace
}  // namespace conclave
