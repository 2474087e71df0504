// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Conversions against an independent rule: the nearest representable value by exact arithmetic in double, for all 65536
// patterns of each 16-bit type, the points halfway between neighbours, and what lies on either side of them.
#include "cpu/float_convert.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu/features.hpp"

namespace conclave::cpu {
namespace {

/// The value of a 16-bit pattern with `exponent_bits`, from the definition of IEEE formats.
double value_of(std::uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

struct Format {
  const char* name;
  DType dtype;
  int exponent_bits;
};
constexpr Format kFormats[] = {{"bf16", DType::bf16, 8}, {"f16", DType::f16, 5}};

std::vector<std::uint16_t> all_patterns() {
  std::vector<std::uint16_t> all;
  for (int i = 0; i < 65536; ++i) all.push_back(static_cast<std::uint16_t>(i));
  return all;
}

void expect_widened(const Format& format, const char* how, std::uint16_t bits, float got) {
  const double expected = value_of(bits, format.exponent_bits);
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(got)) << how << " " << bits;
  } else {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(static_cast<float>(expected)))
        << how << " " << format.name << " " << bits;
  }
}

/// Values around every representable one: itself, both halfway points, and a step of f32 to each side of them.
std::vector<float> samples(const Format& format) {
  std::vector<float> list;
  for (int i = 0; i < 0x7FFF; ++i) {
    const double low = value_of(static_cast<std::uint16_t>(i), format.exponent_bits);
    double high = value_of(static_cast<std::uint16_t>(i + 1), format.exponent_bits);
    if (std::isnan(low) || std::isinf(low)) continue;
    // Above the largest finite value rounding is as if the next step existed.
    if (std::isinf(high)) high = low + (low - value_of(static_cast<std::uint16_t>(i - 1), format.exponent_bits));
    const float half = static_cast<float>(low + (high - low) / 2);
    for (const float v : {static_cast<float>(low), half, std::nextafter(half, 0.0F), std::nextafter(half, INFINITY)}) {
      list.push_back(v);
      list.push_back(-v);
    }
  }
  for (const float v : {std::numeric_limits<float>::max(), 1e-45F, INFINITY, 0.0F}) {
    list.push_back(v);
    list.push_back(-v);
  }
  return list;
}

/// The nearest representable pattern, ties to the even one, by searching the ordered list of values.
std::uint16_t nearest(float value, const Format& format) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  const int infinity = ((1 << format.exponent_bits) - 1) << (15 - format.exponent_bits);
  int low = 0, high = infinity;  // value_of(low) <= magnitude; high is above, or infinity.
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (value_of(static_cast<std::uint16_t>(middle), format.exponent_bits) <= magnitude ? low : high) = middle;
  }
  if (std::isinf(magnitude)) return static_cast<std::uint16_t>(sign | infinity);
  const double below = value_of(static_cast<std::uint16_t>(low), format.exponent_bits);
  double above = value_of(static_cast<std::uint16_t>(high), format.exponent_bits);
  if (std::isinf(above)) above = below + (below - value_of(static_cast<std::uint16_t>(low - 1), format.exponent_bits));
  const double down = magnitude - below, up = above - magnitude;
  const bool take_high = up < down || (up == down && low % 2 == 1);
  return static_cast<std::uint16_t>(sign | (take_high ? high : low));
}

TEST(FloatConvert, WidensEveryPatternInEveryVariant) {
  const std::vector<std::uint16_t> all = all_patterns();
  std::vector<float> out(all.size());
  const auto count = static_cast<std::int64_t>(all.size());
  for (const Format& format : kFormats) {
    const bool bf16 = format.dtype == DType::bf16;
    for (const std::uint16_t bits : all) {
      expect_widened(format, "scalar", bits, bf16 ? bf16_to_f32(bits) : f16_to_f32(bits));
      const std::uint16_t pair[4] = {0, bits};  // Room for two f32, which the inlined function may look at.
      expect_widened(format, "element", bits, load_element(pair, format.dtype, 1));
    }
    for (const FloatConverters& variant : float_converters()) {
      if (!variant.runs_on(features())) continue;
      (bf16 ? variant.bf16_to_f32 : variant.f16_to_f32)(all.data(), count, out.data());
      for (std::size_t i = 0; i < all.size(); ++i) expect_widened(format, variant.name, all[i], out[i]);
    }
  }
}

TEST(FloatConvert, NarrowsToTheNearestEvenInEveryVariant) {
  for (const Format& format : kFormats) {
    const bool bf16 = format.dtype == DType::bf16;
    const std::vector<float> in = samples(format);
    std::vector<std::uint16_t> expected, out(in.size());
    for (const float v : in) expected.push_back(nearest(v, format));
    for (std::size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(bf16 ? f32_to_bf16(in[i]) : f32_to_f16(in[i]), expected[i]) << format.name << " of " << in[i];
      store_element(in[i], format.dtype, 0, out.data());
      ASSERT_EQ(out[0], expected[i]);
    }
    for (const FloatConverters& variant : float_converters()) {
      if (!variant.runs_on(features())) continue;
      (bf16 ? variant.f32_to_bf16 : variant.f32_to_f16)(in.data(), static_cast<std::int64_t>(in.size()), out.data());
      for (std::size_t i = 0; i < in.size(); ++i) ASSERT_EQ(out[i], expected[i]) << variant.name << " of " << in[i];
    }
  }
}

TEST(FloatConvert, NarrowedNanIsAQuietNanEvenIfItsPayloadIsLow) {
  for (const std::uint32_t pattern : {0x7F800001U, 0xFF800001U, 0x7FC00000U, 0x7FFFFFFFU, 0x7F8000FFU}) {
    const std::vector<float> in(11, std::bit_cast<float>(pattern));  // 11: a vector body and a tail.
    std::vector<std::uint16_t> out(in.size());
    for (const Format& format : kFormats) {
      const bool bf16 = format.dtype == DType::bf16;
      const int quiet = 1 << (14 - format.exponent_bits);
      for (const FloatConverters& variant : float_converters()) {
        if (!variant.runs_on(features())) continue;
        (bf16 ? variant.f32_to_bf16 : variant.f32_to_f16)(in.data(), 11, out.data());
        for (const std::uint16_t bits : out) {
          EXPECT_TRUE(std::isnan(value_of(bits, format.exponent_bits))) << variant.name << " " << pattern;
          EXPECT_NE(bits & quiet, 0) << variant.name << " " << pattern;
          EXPECT_EQ(bits >> 15, pattern >> 31) << "the sign was lost";
        }
      }
    }
  }
}

TEST(FloatConvert, RowsOfAnyLengthTouchOnlyTheirOwnElements) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (std::int64_t count = 0; count <= 19; ++count) {
      std::vector<float> in(20, 3.0F), back(20, -1.0F);
      std::vector<std::uint32_t> stored(20, 0xABABABABU);
      store_f32(in.data(), dtype, count, stored.data());
      load_f32(stored.data(), dtype, count, back.data());
      for (std::int64_t i = 0; i < 20; ++i) ASSERT_EQ(back[static_cast<std::size_t>(i)], i < count ? 3.0F : -1.0F);
      const auto* bytes = reinterpret_cast<const unsigned char*>(stored.data());
      ASSERT_EQ(bytes[bytes_of(dtype, count)], 0xAB) << name_of(dtype) << " " << count;
    }
}

TEST(FloatConvert, RowsMayBeStrided) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    std::vector<std::uint32_t> memory(30, 0);
    const TensorView matrix(memory.data(), dtype, {6, 5});
    TensorView column = matrix;  // Column 2: six elements, five apart.
    column.rank = 1;
    column.shape[0] = 6;
    column.strides[0] = 5;
    const std::vector<float> in{1, 2, 3, 4, 5, 6};
    store_row_f32(in.data(), column);
    std::vector<float> out(6);
    load_row_f32(column, out.data());
    EXPECT_EQ(out, in);
    load_row_f32(matrix.at(1), out.data());
    EXPECT_EQ(out[0], 2.0F);
    EXPECT_EQ(out[1], 0.0F);
  }
}

}  // namespace
}  // namespace conclave::cpu
