// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Single elements and scale codes <-> f32. Narrowing rounds to nearest, ties to even, and saturates; widening is exact.
//   e4m3  sign, 4 bits of exponent (bias 7), 3 of mantissa; subnormals; 0x7F and 0xFF are NaN, there is no infinity
//   e2m1  sign, 2 bits of exponent (bias 1), 1 of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6; no NaN
//   e8m0  2^(code - 127); 0xFF is NaN; neither zero nor sign
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/host_device.hpp"

namespace conclave::quant {

inline constexpr float kMaxE4m3 = 448.0f;
inline constexpr float kMaxE2m1 = 6.0f;
inline constexpr std::uint8_t kNanE4m3 = 0x7F;
inline constexpr std::uint8_t kNanE8m0 = 0xFF;

inline float e4m3_to_f32(std::uint8_t code) noexcept {
  const std::uint32_t sign = (code & 0x80U) << 24;
  const std::uint32_t magnitude = code & 0x7FU;
  if (magnitude == 0x7F) return std::bit_cast<float>(sign | 0x7FC00000U);
  // Subnormals count 2^-9; the product is exact and keeps the sign of zero below.
  if (magnitude < 8)
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-9f));
  // The exponent biases differ by 120.
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120U << 23)));
}

CONCLAVE_HOST_DEVICE inline std::uint8_t f32_to_e4m3(float value) noexcept {
  // Kernels have these as numbers; a reference to a constant of the host would be one they cannot follow.
  constexpr std::uint32_t kMax = std::bit_cast<std::uint32_t>(kMaxE4m3);
  constexpr std::uint32_t kSmallestNormal = std::bit_cast<std::uint32_t>(0x1p-6f);
  constexpr std::uint32_t kShift = std::bit_cast<std::uint32_t>(0x1p14f);
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint8_t>(sign | kNanE4m3);
  if (magnitude >= kMax) return static_cast<std::uint8_t>(sign | 0x7EU);
  if (magnitude < kSmallestNormal) {
    // 2^14 has the subnormal step 2^-9 as its last bit: the addition rounds to that step, ties to even. Eight steps are
    // the smallest normal number, and its code is 8.
    const float rounded = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(rounded) - kShift));
  }
  const std::uint32_t rounded = magnitude + 0x7FFFFU + ((magnitude >> 20) & 1U);
  return static_cast<std::uint8_t>(sign | ((rounded >> 20) - (120U << 3)));
}

inline float e2m1_to_f32(std::uint8_t code) noexcept {
  constexpr float kValues[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float value = kValues[code & 7U];
  return (code & 8U) != 0 ? -value : value;
}

/// A NaN becomes zero: the format has none, and the scale of its group says it.
inline std::uint8_t f32_to_e2m1(float value) noexcept {
  const float a = std::fabs(value);
  // Halfway points; where the lower neighbour has an odd code, the tie belongs to the upper one.
  const int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return static_cast<std::uint8_t>(code | (std::signbit(value) ? 8 : 0));
}

inline float e8m0_to_f32(std::uint8_t code) noexcept {
  if (code == kNanE8m0) return std::numeric_limits<float>::quiet_NaN();
  // 2^-127 is a subnormal of f32: code 0 is not zero.
  return std::bit_cast<float>(code == 0 ? 0x00400000U : static_cast<std::uint32_t>(code) << 23);
}

/// The code of an exact power of two in [2^-127, 2^127], or of NaN.
inline std::uint8_t f32_to_e8m0(float value) noexcept {
  if (std::isnan(value)) return kNanE8m0;
  return static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(value) >> 23);
}

/// Element i of a row of packed halves: element 2i in the low half of byte i.
inline std::uint8_t nibble(const std::uint8_t* row, std::int64_t i) noexcept {
  return static_cast<std::uint8_t>((row[i / 2] >> (i % 2 * 4)) & 0xFU);
}

}  // namespace conclave::quant
