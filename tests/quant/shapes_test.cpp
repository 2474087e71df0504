// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conclave/quantise.hpp"
#include "support/message_of.hpp"

namespace conclave {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using K = QuantKey;

constexpr auto kActivations = QuantRole::activations;

TEST(QuantShapes, OfEveryGranularity) {
  // 160 rows and 192 columns: not multiples of 128, and of different group counts.
  const auto shapes = [](QuantKey key, QuantRole role = QuantRole::weights) { return shapes_of(key, 160, 192, role); };
  EXPECT_EQ(shapes(K::fp8_tensor).elements, (MatrixShape{DType::fp8_e4m3, 160, 192}));
  EXPECT_EQ(shapes(K::fp8_tensor).scale, (MatrixShape{DType::f32, 1, 1}));
  EXPECT_EQ(shapes(K::fp8_tensor_dynamic).scale, (MatrixShape{DType::f32, 1, 1}));
  EXPECT_EQ(shapes(K::fp8_channel).scale, (MatrixShape{DType::f32, 160, 1}));
  EXPECT_EQ(shapes(K::fp8_token).scale, (MatrixShape{DType::f32, 160, 1}));
  EXPECT_EQ(shapes(K::fp8_block128).scale, (MatrixShape{DType::f32, 2, 2}));
  EXPECT_EQ(shapes(K::fp8_block128, kActivations).scale, (MatrixShape{DType::f32, 160, 2}));
  EXPECT_EQ(shapes(K::fp8_block64).scale, (MatrixShape{DType::f32, 160, 3}));
  EXPECT_EQ(shapes(K::mxfp8).scale, (MatrixShape{DType::e8m0, 160, 6}));
  EXPECT_EQ(shapes(K::mxfp4).elements, (MatrixShape{DType::u8, 160, 96}));
  EXPECT_EQ(shapes(K::mxfp4).scale, (MatrixShape{DType::e8m0, 160, 6}));
  EXPECT_EQ(shapes(K::nvfp4).scale, (MatrixShape{DType::fp8_e4m3, 160, 12}));
  EXPECT_EQ(shapes(K::nvfp4).global_scale, (MatrixShape{DType::f32, 1, 1}));
  EXPECT_EQ(shapes(K::nvfp4_token).global_scale, (MatrixShape{DType::f32, 160, 1}));
  EXPECT_EQ(shapes(K::int8_channel).elements, (MatrixShape{DType::i8, 160, 192}));
  EXPECT_EQ(shapes(K::int4_group64).elements, (MatrixShape{DType::u8, 160, 96}));
  EXPECT_EQ(shapes(K::int4_group64).scale, (MatrixShape{DType::f32, 160, 3}));
  EXPECT_EQ(shapes(K::int4_group64).zero_point, std::nullopt);
  EXPECT_EQ(shapes(K::int4_group32_zp).zero_point, (MatrixShape{DType::u8, 160, 6}));
  EXPECT_EQ(shapes_of(K::int4_channel_zp, 3, 7).elements, (MatrixShape{DType::u8, 3, 4}));
}

TEST(QuantShapes, AgreeWithTheBytesOfThePlan) {
  for (QuantKey key : all_quant_keys()) {
    if (key == K::none) continue;
    const QuantShapes s = shapes_of(key, 256, 384);
    std::int64_t bytes = bytes_of(s.elements.dtype, s.elements.rows * s.elements.cols);
    bytes += bytes_of(s.scale.dtype, s.scale.rows * s.scale.cols);
    if (s.global_scale) bytes += bytes_of(DType::f32, s.global_scale->rows);
    // The plan counts zero points as a kernel packs them, two to a byte.
    if (s.zero_point) bytes += s.zero_point->rows * s.zero_point->cols / 2;
    EXPECT_EQ(weight_bytes(key, DType::bf16, 256, 384), bytes) << name_of(key);
  }
}

TEST(QuantShapes, AGroupThatDoesNotDivideIsRefusedUnlessTheFormatHasShortBlocks) {
  for (QuantKey key : {K::mxfp4, K::mxfp8, K::nvfp4, K::int8_group128, K::int4_group32, K::int4_group128_zp})
    EXPECT_THAT(test::message_of([&] { shapes_of(key, 4, 200); }),
                AllOf(HasSubstr(std::string(name_of(key))), HasSubstr("200"), HasSubstr("multiple of the group")));
  EXPECT_EQ(shapes_of(K::fp8_block128, 4, 200).scale, (MatrixShape{DType::f32, 1, 2}));
  EXPECT_EQ(shapes_of(K::fp8_block64, 4, 200).scale, (MatrixShape{DType::f32, 4, 4}));
}

TEST(QuantShapes, NoneAndUnknownKeysAreRefused) {
  EXPECT_THAT(test::message_of([] { shapes_of(K::none, 4, 4); }), HasSubstr("none"));
  EXPECT_THAT(test::message_of([] { shapes_of(static_cast<QuantKey>(99), 4, 4); }), HasSubstr("99"));
}

}  // namespace
}  // namespace conclave
