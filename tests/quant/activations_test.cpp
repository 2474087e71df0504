// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
#include "quant/activations.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quant/matrices.hpp"
#include "support/message_of.hpp"

namespace conclave::quant {
namespace {

using K = QuantKey;

std::vector<float> row_values(const Tensor& x, std::int64_t row) {
  const std::int64_t cols = x.view().size(1);
  return {x.as<float>() + row * cols, x.as<float>() + (row + 1) * cols};
}

TEST(ActivationQuantiser, IsEncodingAndDecoding) {
  const Tensor x = test::random_tensor(DType::f32, {3, 576}, 7);  // More than one piece, not a power of two.
  for (K key : all_quant_keys()) {
    if (key == K::none || !supports_key(key, QuantRole::activations)) continue;
    const ActivationQuantiser quantiser(key);
    const test::OwnedMatrix m = test::quantised(key, x, QuantRole::activations);
    const std::vector<float> expected = test::dequantised(m);
    const bool wide = has_static_scale(key) || spans_the_batch(key);
    const float given = !wide ? NAN : m.global_scale ? m.global_scale.as<float>()[0] : m.scale.as<float>()[0];
    for (std::int64_t r = 0; r < 3; ++r) {
      std::vector<float> row = row_values(x, r);
      quantiser.round_trip(row.data(), 576, given);
      EXPECT_EQ(row, std::vector<float>(expected.begin() + r * 576, expected.begin() + (r + 1) * 576)) << name_of(key);
    }
  }
}

/// What travels between ranks is the round trip, cut in two; also where the scales are not neighbours.
TEST(ActivationQuantiser, CodesOfARowDecodeToItsRoundTrip) {
  constexpr std::int64_t kCols = 576;
  const Tensor x = test::random_tensor(DType::f32, {3, kCols}, 9);
  int tried = 0;
  for (K key : all_quant_keys()) {
    if (key == K::none || !supports_key(key, QuantRole::activations) || !codes_by_row(key)) continue;
    ++tried;
    const ActivationQuantiser quantiser(key);
    for (std::int64_t stride : {1, 3})
      for (std::int64_t r = 0; r < 3; ++r) {
        const std::vector<float> row = row_values(x, r);
        std::vector<float> expected = row;
        quantiser.round_trip(expected.data(), kCols, NAN);
        std::vector<std::uint8_t> codes(kCols, 0xEE);
        std::vector<float> scales(kCols * 3, -7.0f);  // Room for any type.
        quantiser.encode(
            kCols, [&](std::int64_t first, std::int64_t n, float* to) { std::copy_n(row.data() + first, n, to); },
            codes.data(), scales.data(), stride);
        std::vector<float> got(kCols, NAN);
        quantiser.decode(codes.data(), scales.data(), stride, kCols, got.data());
        EXPECT_EQ(got, expected) << name_of(key) << " " << stride;
      }
  }
  EXPECT_EQ(tried, 6);
}

TEST(ActivationQuantiser, TheScaleOfABatchIsThatOfTheTensor) {
  const Tensor x = test::random_tensor(DType::f32, {3, 40}, 8);
  for (K key : {K::fp8_tensor_dynamic, K::int8_tensor_dynamic}) {
    GroupStats stats;
    for (std::int64_t r = 2; r >= 0; --r) {
      GroupStats one;
      one.add(x.as<float>() + r * 40, 40);
      stats.merge(one);
    }
    EXPECT_EQ(ActivationQuantiser(key).batch_scale(stats), test::quantised(key, x).scale.as<float>()[0]);
  }
}

TEST(ActivationQuantiser, NoneChangesNothing) {
  std::vector<float> row = {1.0f, 0.1f, -3.3f};
  ActivationQuantiser(K::none).round_trip(row.data(), 3, 0.0f);
  EXPECT_THAT(row, ::testing::ElementsAre(1.0f, 0.1f, -3.3f));
}

TEST(ActivationQuantiser, FormatsOfWeightsAreRefused) {
  for (K key : {K::fp8_channel, K::int8_group128, K::int4_group32, K::int4_channel_zp})
    EXPECT_THAT(test::message_of([&] { ActivationQuantiser quantiser(key); }),
                ::testing::HasSubstr(std::string(name_of(key)) + ", which is a format of weights"));
}

TEST(Formats, ReasonsNameTheKeyAndTheSize) {
  EXPECT_THAT(supports_key(K::fp8_token, QuantRole::weights).reason(), ::testing::HasSubstr("fp8_token"));
  EXPECT_THAT(supports_key(static_cast<K>(77), QuantRole::weights).reason(), ::testing::HasSubstr("77"));
  EXPECT_THAT(supports_cols(K::nvfp4, QuantRole::activations, "intermediate_size", 40).reason(),
              ::testing::AllOf(::testing::HasSubstr("intermediate_size 40"), ::testing::HasSubstr("multiples of 16")));
  EXPECT_TRUE(supports_cols(K::fp8_block128, QuantRole::activations, "hidden_size", 40));
  EXPECT_TRUE(supports_cols(K::none, QuantRole::weights, "hidden_size", 41));
}

}  // namespace
}  // namespace conclave::quant
