// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The oracle's own formats on values worked out by hand.
#include "verify/oracle_quant.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/tensors.hpp"
#include "verify/element.hpp"

namespace conclave::verify_detail {
namespace {

using ::testing::ElementsAre;
using K = QuantKey;

std::vector<double> recoded(K key, std::vector<double> row, double given = NAN) {
  oracle_requantise(key, row, given);
  return row;
}

TEST(OracleQuant, RoundsToTheCodesOfEachElement) {
  // Scale 1: steps of 32 below 448, 0.25 between 2 and 4; 17 is a tie between 16 and 18.
  EXPECT_THAT(recoded(K::fp8_tensor, {448, 500, 17, -2.6, 0.0005}, 1), ElementsAre(448, 448, 16, -2.5, 0));
  EXPECT_THAT(recoded(K::fp8_token, {896, 34, -2}), ElementsAre(896, 32, -2));
  EXPECT_THAT(recoded(K::int8_tensor, {2.5, 3.5, -1000}, 1), ElementsAre(2, 4, -127));
  std::vector<double> row(32, 0.0);
  row[0] = 7.9;
  row[1] = 2.5;
  row[2] = -0.3;
  EXPECT_THAT(recoded(K::mxfp4, row)[0], 6);
  EXPECT_THAT(recoded(K::mxfp4, row)[1], 2);
  EXPECT_THAT(recoded(K::mxfp4, row)[2], -0.5);
  row.resize(16);
  // The block's scale is 7.9 / 6 in e4m3: 1.3125 rounds to 1.375 (steps of 0.125, ties to even), 1.3167 too.
  EXPECT_DOUBLE_EQ(recoded(K::nvfp4, row, 1)[0], 6 * 1.375);
  EXPECT_DOUBLE_EQ(recoded(K::nvfp4_token, row)[0], 7.9);
}

TEST(OracleQuant, GroupsHaveTheirOwnScalesAndZerosStayZeros) {
  std::vector<double> row(130, 0.0);
  row[0] = 1e-3;
  row[128] = 100;
  EXPECT_DOUBLE_EQ(recoded(K::fp8_block128, row)[0], 1e-3);
  EXPECT_DOUBLE_EQ(recoded(K::fp8_token, row)[0], 100.0 / 448 / 512 * 2);  // 2.3 steps of the smallest code
  EXPECT_THAT(recoded(K::fp8_block64, std::vector<double>(70, 0.0)), ::testing::Each(0.0));
}

TEST(OracleQuant, DequantisesCodesWithEveryKindOfScale) {
  MoeConfig moe;
  moe.activation = Activation::silu;
  moe.hidden_size = 2;
  moe.intermediate_size = 1;
  ExpertWeights w;
  // fp8: rows gate {1, -2}, up {0.5, 448}; scales 2 and 4 of their own.
  Tensor fp8(DType::fp8_e4m3, {1, 2, 2});
  const std::uint8_t codes[] = {0x38, 0xC0, 0x30, 0x7E};
  std::copy(codes, codes + 4, fp8.as<std::uint8_t>());
  const Tensor split = test::tensor_of(DType::f32, {1, 2, 1}, {2, 4});
  w.w13 = fp8;
  w.w13_scale = split.view();
  EXPECT_THAT(oracle_dequantise(moe, K::fp8_tensor, w, 0, true), ElementsAre(2, -4, 2, 1792));
  moe.w13_layout = W13Layout::up_gate;
  EXPECT_THAT(oracle_dequantise(moe, K::fp8_tensor, w, 0, true), ElementsAre(4, -8, 1, 896));
  // int4: low half first; 8 is zero without zero points.
  Tensor int4(DType::u8, {1, 2, 1});
  int4.as<std::uint8_t>()[0] = 0x9F;
  int4.as<std::uint8_t>()[1] = 0x08;
  const Tensor rows = test::tensor_of(DType::f32, {1, 2, 1}, {1, 10});
  Tensor zero(DType::u8, {1, 2, 1});
  zero.as<std::uint8_t>()[0] = 15;
  zero.as<std::uint8_t>()[1] = 0;
  w.w13 = int4;
  w.w13_scale = rows.view();
  EXPECT_THAT(oracle_dequantise(moe, K::int4_channel, w, 0, true), ElementsAre(7, 1, 0, -80));
  w.w13_zero_point = zero.view();
  EXPECT_THAT(oracle_dequantise(moe, K::int4_channel_zp, w, 0, true), ElementsAre(0, -6, 80, 0));
}

TEST(OracleQuant, KnowsWhichScalesSpanTheBatch) {
  EXPECT_TRUE(oracle_spans_the_batch(K::fp8_tensor_dynamic));
  EXPECT_TRUE(oracle_spans_the_batch(K::int8_tensor_dynamic));
  for (K key : {K::none, K::fp8_tensor, K::fp8_token, K::nvfp4_token, K::mxfp8})
    EXPECT_FALSE(oracle_spans_the_batch(key));
  EXPECT_DOUBLE_EQ(oracle_batch_scale(K::int8_tensor_dynamic, 254), 2);
}

TEST(Element, CodesOfEightBitsAreNumbers) {
  Tensor t(DType::fp8_e4m3, {256});
  for (int code = 0; code < 256; ++code) {
    store(t, code, 0);
    t.as<std::uint8_t>()[code] = static_cast<std::uint8_t>(code);
    const double value = load(t, code);
    store(t, code, value);
    if (!std::isnan(value)) {
      EXPECT_EQ(t.as<std::uint8_t>()[code], code);
    }
  }
  EXPECT_EQ(load(t, 0x7E), 448);
  EXPECT_EQ(load(t, 1), std::ldexp(1, -9));
  Tensor scales(DType::e8m0, {2});
  store(scales, 0, 0.25);
  EXPECT_EQ(scales.as<std::uint8_t>()[0], 125);
  EXPECT_EQ(load(scales, 0), 0.25);
  EXPECT_EQ(load(scales, 1), std::ldexp(1, -127));
}

}  // namespace
}  // namespace conclave::verify_detail
