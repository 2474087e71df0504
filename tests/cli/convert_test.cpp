// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Element types into each other: every f16 and bf16 value, rounding to even, strides, and integers that do not fit.
#include "cli/convert.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "conclave/error.hpp"

namespace conclave::cli {
namespace {

class Convert : public testing::Test {
 protected:
  std::uint16_t narrowed(float x, DType dtype) {
    return convert(ConstTensorView(&x, DType::f32, {1}), dtype, "x", *executor_).as<std::uint16_t>()[0];
  }
  float widened(std::uint16_t x, DType dtype) {
    return convert(ConstTensorView(&x, dtype, {1}), DType::f32, "x", *executor_).as<float>()[0];
  }
  std::unique_ptr<Executor> executor_ = make_inline_executor();
};

TEST_F(Convert, EveryHalfSurvivesTheWayThroughF32) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Tensor wide = convert(ConstTensorView(all.data(), dtype, {256, 256}), DType::f32, "x", *executor_);
    const Tensor back = convert(wide, dtype, "x", *executor_);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (std::isnan(wide.as<float>()[i]))
        EXPECT_TRUE(std::isnan(widened(back.as<std::uint16_t>()[i], dtype)));
      else
        ASSERT_EQ(back.as<std::uint16_t>()[i], all[i]) << name_of(dtype);
    }
  }
}

TEST_F(Convert, KnownValues) {
  EXPECT_EQ(widened(0x3c00, DType::f16), 1.0F);
  EXPECT_EQ(widened(0x0001, DType::f16), 0x1p-24F);
  EXPECT_EQ(widened(0x8400, DType::f16), -0x1p-14F);
  EXPECT_EQ(widened(0x7bff, DType::f16), 65504.0F);
  EXPECT_EQ(widened(0x3f80, DType::bf16), 1.0F);
  EXPECT_EQ(narrowed(65504.0F, DType::f16), 0x7bff);
  EXPECT_EQ(narrowed(65519.0F, DType::f16), 0x7bff);
  EXPECT_EQ(narrowed(65520.0F, DType::f16), 0x7c00);
  EXPECT_EQ(narrowed(1.0F + 0x1p-11F, DType::f16), 0x3c00) << "tie to even";
  EXPECT_EQ(narrowed(1.0F + 3 * 0x1p-11F, DType::f16), 0x3c02) << "tie to even";
  EXPECT_EQ(narrowed(0x1p-25F, DType::f16), 0) << "tie to even below the smallest subnormal";
  EXPECT_EQ(narrowed(0x1.8p-25F, DType::f16), 1);
  EXPECT_EQ(narrowed(-0x1p-24F, DType::f16), 0x8001);
  EXPECT_EQ(narrowed(1.0F + 0x1p-8F, DType::bf16), 0x3f80) << "tie to even";
  EXPECT_EQ(narrowed(1.0F + 3 * 0x1p-8F, DType::bf16), 0x3f82) << "tie to even";
  EXPECT_EQ(narrowed(std::numeric_limits<float>::max(), DType::bf16), 0x7f80);
}

TEST_F(Convert, StridedRowsAndManyThreads) {
  // 3 matrices of 5 rows of 7 columns inside rows of 11, gaps between the matrices as well.
  std::vector<double> memory(3 * 6 * 11);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<double>(i);
  ConstTensorView view(memory.data(), DType::f64, {3, 5, 7});
  view.strides = {66, 11, 1};
  for (const int threads : {1, 3}) {
    const auto executor = make_executor(threads);
    const Tensor copy = convert(view, DType::f32, "x", *executor);
    for (std::int64_t e = 0; e < 3; ++e)
      for (std::int64_t r = 0; r < 5; ++r)
        for (std::int64_t c = 0; c < 7; ++c)
          ASSERT_EQ(copy.as<float>()[(e * 5 + r) * 7 + c], static_cast<float>(e * 66 + r * 11 + c));
  }
}

TEST_F(Convert, EmptyAndRefused) {
  EXPECT_EQ(convert(ConstTensorView(nullptr, DType::f32, {0, 4}), DType::bf16, "x", *executor_).view().numel(), 0);
  const std::int32_t integer = 1;
  EXPECT_THROW(convert(ConstTensorView(&integer, DType::i32, {1}), DType::f32, "x", *executor_), Error);
  const float value = 1;
  EXPECT_THROW(convert_ids(ConstTensorView(&value, DType::f32, {1}), "x"), Error);
}

TEST_F(Convert, IdsThatDoNotFitStayIllegal) {
  const std::vector<std::int64_t> ids = {5, -1, std::int64_t{1} << 40, -(std::int64_t{1} << 40)};
  const Tensor copy = convert_ids(ConstTensorView(ids.data(), DType::i64, {2, 2}), "ids");
  EXPECT_EQ(copy.as<std::int32_t>()[0], 5);
  EXPECT_EQ(copy.as<std::int32_t>()[1], -1);
  EXPECT_EQ(copy.as<std::int32_t>()[2], std::numeric_limits<std::int32_t>::max());
  EXPECT_EQ(copy.as<std::int32_t>()[3], std::numeric_limits<std::int32_t>::min());
  const std::uint8_t small = 200;
  EXPECT_EQ(convert_ids(ConstTensorView(&small, DType::u8, {1}), "ids").as<std::int32_t>()[0], 200);
}

}  // namespace
}  // namespace conclave::cli
