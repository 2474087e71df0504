// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quant/elements.hpp"
#include "quant/matrices.hpp"
#include "support/message_of.hpp"

namespace conclave {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using K = QuantKey;
using test::dequantised;
using test::quantised;
using test::tensor_of;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The worst error of one element in units of its group's scale: half of the widest step, and what saturation cuts off
/// (mx scales are powers of two, so values up to 512 or 8 meet 448 or 6).
double worst_error(QuantKey key) {
  const QuantScheme s = scheme_of(key);
  if (s.element == DType::fp8_e4m3) return key == K::mxfp8 ? 64.0 : 16.01;
  if (s.element == DType::fp4_e2m1) return key == K::mxfp4 ? 2.0 : 1.01;
  return s.symmetric ? 0.501 : 1.001;
}

float effective_scale(const test::OwnedMatrix& m, std::int64_t row, std::int64_t col) {
  const std::int64_t group_rows = (m.view.rows + m.scale.view().size(0) - 1) / m.scale.view().size(0);
  const auto scheme = scheme_of(m.view.key);
  const std::int64_t r = scheme.scale->group.rows == 128 && m.view.role == QuantRole::weights ? row / 128
                         : m.scale.view().size(0) == 1                                        ? 0
                                                                                              : row / group_rows;
  const std::int64_t c = scheme.scale->group.cols < 0 ? 0 : col / scheme.scale->group.cols;
  const ConstTensorView scale = m.scale;
  const std::int64_t at = r * scale.stride(0) + c;
  float value = scale.dtype == DType::f32    ? scale.as<float>()[at]
                : scale.dtype == DType::e8m0 ? quant::e8m0_to_f32(scale.as<std::uint8_t>()[at])
                                             : quant::e4m3_to_f32(scale.as<std::uint8_t>()[at]);
  if (m.global_scale) value *= m.global_scale.as<float>()[m.global_scale.view().size(0) == 1 ? 0 : row];
  return value;
}

TEST(Quantise, ErrorsStayWithinHalfAStepOfEveryFormat) {
  const Tensor x = test::random_tensor(DType::f32, {131, 384}, 1, 3.0);
  for (const auto& f : test::all_formats()) {
    const test::OwnedMatrix m = quantised(f.key, x, f.role);
    const std::vector<float> y = dequantised(m);
    double norm = 0, difference = 0;
    for (std::int64_t i = 0; i < x.view().numel(); ++i) {
      const double error = std::fabs(y[static_cast<std::size_t>(i)] - x.as<float>()[i]);
      ASSERT_LE(error, worst_error(f.key) * effective_scale(m, i / 384, i % 384)) << text_of(f) << " element " << i;
      difference += error * error;
      norm += x.as<float>()[i] * x.as<float>()[i];
    }
    const int bits = scheme_of(f.key).bits;
    EXPECT_LT(std::sqrt(difference / norm), bits == 8 ? 0.04 : 0.17) << text_of(f);
    EXPECT_GT(std::sqrt(difference / norm), 1e-4) << text_of(f);
  }
}

TEST(Quantise, EncodingWhatWasDecodedGivesTheSameCodes) {
  const Tensor x = test::random_tensor(DType::f32, {131, 384}, 2, 0.7);
  for (const auto& f : test::all_formats()) {
    const test::OwnedMatrix first = quantised(f.key, x, f.role);
    std::vector<float> y = dequantised(first);
    const test::OwnedMatrix again = quantised(f.key, ConstTensorView(y.data(), DType::f32, {131, 384}), f.role);
    // Only -0 may turn into 0, where a zero point has no sign: compare what the codes mean.
    EXPECT_EQ(test::bytes_of_tensor(first.elements), test::bytes_of_tensor(again.elements)) << text_of(f);
    const std::vector<float> z = dequantised(again);
    for (std::size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(z[i], y[i], 3e-7 * std::fabs(y[i])) << text_of(f);
  }
}

TEST(Quantise, WithTheirScalesGivenTheCodesComeBackExactly) {
  const Tensor x = test::random_tensor(DType::f32, {5, 256}, 3);
  for (const auto& f : test::all_formats()) {
    const test::OwnedMatrix first = quantised(f.key, x, f.role);
    const std::vector<float> y = dequantised(first);
    test::OwnedMatrix again = first;
    again.elements = test::poisoned_tensor(first.elements.view().dtype,
                                           {first.elements.view().size(0), first.elements.view().size(1)});
    again.view.elements = again.elements;
    quantise(ConstTensorView(y.data(), DType::f32, {5, 256}), again.view, {.scale = true, .global_scale = true});
    EXPECT_EQ(test::bytes_of_tensor(first.elements), test::bytes_of_tensor(again.elements)) << text_of(f);
    EXPECT_EQ(dequantised(again), y) << text_of(f);
  }
}

TEST(Quantise, AGivenScaleSaturates) {
  const Tensor x = tensor_of(DType::f32, {1, 4}, {1000, -1000, 3, -0.25});
  test::OwnedMatrix fp8 = test::empty_matrix(K::fp8_tensor, 1, 4);
  fp8.scale.as<float>()[0] = 0.5f;
  quantise(x, fp8.view, {.scale = true});
  EXPECT_THAT(dequantised(fp8), ElementsAre(224, -224, 3, -0.25));
  test::OwnedMatrix int8 = test::empty_matrix(K::int8_tensor, 1, 4);
  int8.scale.as<float>()[0] = 0.5f;
  quantise(x, int8.view, {.scale = true});
  EXPECT_THAT(dequantised(int8), ElementsAre(63.5, -63.5, 3, -0.0));  // -0.5 steps: a tie, to even
}

TEST(Quantise, Mxfp4ByHand) {
  // Largest 7.5 = 1.875 * 2^2, so the scale is 2^0; 5 is a tie between 4 and 6 and goes to the even code of 4.
  std::vector<double> row(32, 0.0);
  row[0] = 7.5;
  row[1] = -0.5;
  row[2] = 5;
  row[3] = -2.4;
  row[31] = 1.3;
  const test::OwnedMatrix m = quantised(K::mxfp4, tensor_of(DType::f32, {1, 32}, row));
  EXPECT_THAT(test::bytes_of_tensor(m.scale), ElementsAre(127));
  const auto bytes = test::bytes_of_tensor(m.elements);
  EXPECT_EQ(bytes[0], 0x97);   // 6 in the low half, -0.5 in the high one
  EXPECT_EQ(bytes[1], 0xC6);   // 4, -2
  EXPECT_EQ(bytes[15], 0x30);  // 0, 1.5
}

TEST(Quantise, Nvfp4ByHand) {
  // The largest value 2688 makes the global scale 1 and its block's scale 448; the other block gets 3 / 6.
  std::vector<double> row(32, 0.0);
  row[5] = -2688;
  row[16] = 3;
  row[17] = -0.25;
  const test::OwnedMatrix m = quantised(K::nvfp4, tensor_of(DType::f32, {1, 32}, row));
  EXPECT_EQ(m.global_scale.as<float>()[0], 1.0f);
  EXPECT_THAT(test::bytes_of_tensor(m.scale), ElementsAre(0x7E, 0x30));
  const auto bytes = test::bytes_of_tensor(m.elements);
  EXPECT_EQ(bytes[2], 0xF0);
  EXPECT_EQ(bytes[8], 0x97);
}

TEST(Quantise, Mxfp8ByHand) {
  std::vector<double> row(32, 1.0);
  row[3] = -500;  // 1.95 * 2^8: scale 1, saturates
  const test::OwnedMatrix m = quantised(K::mxfp8, tensor_of(DType::f32, {1, 32}, row));
  EXPECT_THAT(test::bytes_of_tensor(m.scale), ElementsAre(127));
  EXPECT_EQ(test::bytes_of_tensor(m.elements)[3], 0xFE);
  EXPECT_EQ(test::bytes_of_tensor(m.elements)[4], 0x38);
}

TEST(Quantise, TheSmallestAndTheLargestScaleOfMx) {
  // 2^-124 would want the scale 2^-132 (e4m3) and 2^-126 (e2m1); 0 takes the smallest; 2^127 the scale 2^119 or 2^125.
  const auto scale = [](K key, double amax) {
    return test::bytes_of_tensor(quantised(key, tensor_of(DType::f32, {1, 32},
                                                          [&] {
                                                            std::vector<double> row(32, 0.0);
                                                            row[9] = -amax;
                                                            return row;
                                                          }()))
                                     .scale)[0];
  };
  EXPECT_EQ(scale(K::mxfp8, 0x1p-124), 0);
  EXPECT_EQ(scale(K::mxfp4, 0x1p-124), 1);
  EXPECT_EQ(scale(K::mxfp4, 0x1p-125), 0);
  EXPECT_EQ(scale(K::mxfp8, 0.0), 0);
  EXPECT_EQ(scale(K::mxfp8, 0x1p127), 127 + 119);
  EXPECT_EQ(scale(K::mxfp4, 0x1p127), 127 + 125);
}

TEST(Quantise, Int4ByHand) {
  // Scale 0.5 from -4 = -8 * 0.5; 3.5 is the other end, 0.25 a tie that goes to 0, odd columns leave a zero half.
  const test::OwnedMatrix m = quantised(K::int4_channel, tensor_of(DType::f32, {1, 5}, {-4, 3.5, 0.25, 0.75, 1}));
  EXPECT_EQ(m.scale.as<float>()[0], 0.5f);
  EXPECT_THAT(test::bytes_of_tensor(m.elements), ElementsAre(0xF0, 0xA8, 0x0A));
  EXPECT_THAT(dequantised(m), ElementsAre(-4, 3.5, 0, 1, 1));
}

TEST(Quantise, Int4WithAZeroPointByHand) {
  // From -1 to 6.5: scale 0.5, zero is code 2.
  const test::OwnedMatrix m = quantised(K::int4_channel_zp, tensor_of(DType::f32, {1, 4}, {-1, 6.5, 0, 2}));
  EXPECT_EQ(m.scale.as<float>()[0], 0.5f);
  EXPECT_EQ(test::bytes_of_tensor(m.zero_point)[0], 2);
  EXPECT_THAT(test::bytes_of_tensor(m.elements), ElementsAre(0xF0, 0x62));
  EXPECT_THAT(dequantised(m), ElementsAre(-1, 6.5, 0, 2));
  // All positive: zero stays a code of its own.
  const test::OwnedMatrix high = quantised(K::int4_channel_zp, tensor_of(DType::f32, {1, 2}, {30, 28}));
  EXPECT_EQ(test::bytes_of_tensor(high.zero_point)[0], 0);
  EXPECT_THAT(dequantised(high), ElementsAre(30, 28));
}

TEST(Quantise, Int8IsSymmetric) {
  const test::OwnedMatrix m = quantised(K::int8_channel, tensor_of(DType::f32, {2, 3}, {-127, 63.5, 1, 2, -1, 0.5}));
  EXPECT_THAT(test::bytes_of_tensor(m.elements), ElementsAre(129, 64, 1, 127, 192, 32));
}

TEST(Quantise, GroupsWiderThanNothingElseShareNoScale) {
  // Two groups of 32 with scales 1 and 8, as in a kernel whose tile is 64 columns wide: 32 * 1 + 32 * 8 = 288.
  test::OwnedMatrix m = test::empty_matrix(K::mxfp4, 1, 64);
  std::memset(m.elements.as<std::uint8_t>(), 0x22, 32);
  m.scale.as<std::uint8_t>()[0] = 127;
  m.scale.as<std::uint8_t>()[1] = 130;
  float sum = 0;
  for (float v : dequantised(m)) sum += v;
  EXPECT_EQ(sum, 288.0f);
}

TEST(Quantise, ZerosAndNearZerosStayZerosWithAFiniteScale) {
  for (double tiny : {0.0, 1e-30, -1e-38}) {
    for (const auto& f : test::all_formats()) {
      Tensor x(DType::f32, {3, 256});
      test::set(x, {1, 0}, 1.0);  // One row has something in its first group.
      for (std::int64_t c = 0; c < 256; ++c) test::set(x, {2, c}, tiny);
      const test::OwnedMatrix m = quantised(f.key, x, f.role);
      const std::vector<float> y = dequantised(m);
      for (std::size_t i = 0; i < y.size(); ++i) {
        if (i == 256) continue;
        EXPECT_NEAR(y[i], 0.0, 1e-29) << text_of(f) << " element " << i;
      }
      EXPECT_NEAR(y[256], 1.0, 1e-6) << text_of(f);
    }
  }
}

TEST(Quantise, AValueThatIsNotFiniteMakesItsGroupNanAndNoOther) {
  for (const double bad : {double(kNan), double(INFINITY), -double(INFINITY)}) {
    for (const auto& f : test::all_formats()) {
      Tensor x = test::random_tensor(DType::f32, {257, 512}, 4);
      test::set(x, {130, 140}, bad);
      const std::vector<float> y = dequantised(quantised(f.key, x, f.role));
      EXPECT_TRUE(std::isnan(y[130 * 512 + 140])) << text_of(f);
      // Formats with a scale for the whole tensor lose all of it.
      const auto scheme = scheme_of(f.key);
      const bool whole = scheme.scale->group.rows < 0 || (scheme.scale2 && scheme.scale2->group.rows < 0);
      EXPECT_EQ(std::isnan(y[0]), whole) << text_of(f);
      EXPECT_EQ(std::isnan(y[256 * 512 + 511]), whole) << text_of(f);
    }
  }
}

TEST(Quantise, AShortLastBlockHasAScaleOfItsOwn) {
  Tensor x(DType::f32, {130, 130});
  for (std::int64_t i = 0; i < x.view().numel(); ++i) x.as<float>()[i] = 1.0f;
  for (std::int64_t r = 0; r < 130; ++r) test::set(x, {r, 129}, 1e-3);
  test::set(x, {128, 0}, 448);
  test::set(x, {129, 128}, -1e-6);
  test::set(x, {128, 128}, 1e-6);
  test::set(x, {128, 129}, 0.0);
  test::set(x, {129, 129}, 0.0);
  const test::OwnedMatrix m = quantised(K::fp8_block128, x);
  const float* scale = m.scale.as<float>();
  EXPECT_FLOAT_EQ(scale[0], 1.0f / 448);
  EXPECT_FLOAT_EQ(scale[1], 1.0f / 448);
  EXPECT_FLOAT_EQ(scale[2], 1.0f);
  EXPECT_FLOAT_EQ(scale[3], 1e-6f / 448);
  EXPECT_FLOAT_EQ(dequantised(m)[129 * 130 + 128], -1e-6f);
}

TEST(Quantise, StridedInputsAndOutputsOfEveryFloatType) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Tensor wide = test::random_tensor(dtype, {256, 14}, 5);
    TensorView transposed = wide.view();
    std::swap(transposed.shape[0], transposed.shape[1]);
    std::swap(transposed.strides[0], transposed.strides[1]);
    Tensor dense(dtype, {14, 256});
    for (std::int64_t r = 0; r < 14; ++r)
      for (std::int64_t c = 0; c < 256; ++c) test::set(dense, {r, c}, test::at(wide, {c, r}));
    for (const auto& f : test::all_formats()) {
      const test::OwnedMatrix expected = quantised(f.key, dense, f.role);
      test::OwnedMatrix m = test::empty_matrix(f.key, 14, 256, f.role);
      Tensor padded = test::poisoned_tensor(DType::u8, {14, 300});
      m.view.elements = padded.view().narrow(1, 0, m.elements.view().size(1));
      quantise(transposed, m.view);
      EXPECT_EQ(dequantised(m), dequantised(expected)) << text_of(f);
      EXPECT_EQ(padded.as<std::uint8_t>()[299], 0xFF);
    }
  }
}

TEST(Quantise, EmptyMatricesAreLegal) {
  for (const auto& f : test::all_formats()) {
    EXPECT_TRUE(dequantised(quantised(f.key, Tensor(DType::f32, {0, 128}), f.role)).empty());
    EXPECT_TRUE(dequantised(quantised(f.key, Tensor(DType::f32, {3, 0}), f.role)).empty());
  }
}

TEST(Quantise, WrongViewsAreRefusedByName) {
  test::OwnedMatrix m = test::empty_matrix(K::int4_group32_zp, 3, 64);
  const Tensor x(DType::f32, {3, 64});
  const auto message = [&](auto change) {
    QuantMatrix v = m.view;
    change(v);
    return test::message_of([&] { quantise(x, v); });
  };
  EXPECT_THAT(message([](QuantMatrix& v) { v.elements.shape[1] = 31; }), HasSubstr("elements of int4_group32_zp"));
  EXPECT_THAT(message([](QuantMatrix& v) { v.scale.dtype = DType::e8m0; }), HasSubstr("scale of"));
  EXPECT_THAT(message([](QuantMatrix& v) { v.zero_point = {}; }), HasSubstr("zero_point of"));
  EXPECT_THAT(message([](QuantMatrix& v) { v.global_scale = v.scale; }), HasSubstr("expected none"));
  EXPECT_THAT(test::message_of([&] { quantise(Tensor(DType::f32, {3, 63}), m.view); }), HasSubstr("[3, 64]"));
}

}  // namespace
}  // namespace conclave
