// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The OCP microscaling formats: e4m3 or e2m1 elements, one e8m0 scale for 32 of them. In: f32 runs. Out: codes, scale =
// 2^(floor(log2(amax)) - exponent of the element type's largest value).
#include <algorithm>
#include <limits>

#include "quant/elements.hpp"
#include "quant/family.hpp"

namespace conclave::quant {
namespace {

/// 448 = 1.75 * 2^8, 6 = 1.5 * 2^2.
constexpr int kMaxExponentE4m3 = 8;
constexpr int kMaxExponentE2m1 = 2;

/// The specification leaves a block of zeros open; the smallest scale is legal and decodes to zeros.
template <int kMaxExponent>
GroupScale mx_scale(const GroupStats& stats, float /*global*/) {
  if (!stats.finite) return {std::numeric_limits<float>::quiet_NaN()};
  const int exponent = stats.amax() > 0 ? std::ilogb(stats.amax()) - kMaxExponent : -127;
  return {std::ldexp(1.0f, std::clamp(exponent, -127, 127))};
}

}  // namespace

void encode_e2m1(const float* x, std::int64_t first, std::int64_t count, GroupScale scale, std::uint8_t* row) {
  // nvfp4 blocks far below the others have the scale 0: their elements are zeros, not infinities.
  if (scale.value == 0.0f) return pack_nibbles(first, count, row, [](std::int64_t) { return std::uint8_t{0}; });
  pack_nibbles(first, count, row, [&](std::int64_t i) { return f32_to_e2m1(x[i] / scale.value); });
}

void decode_e2m1(const std::uint8_t* row, std::int64_t first, std::int64_t count, GroupScale scale, float* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = e2m1_to_f32(nibble(row, first + i)) * scale.value;
}

const Family& mxfp8_family() noexcept {
  static constexpr Family kFamily{mx_scale<kMaxExponentE4m3>, encode_e4m3, decode_e4m3};
  return kFamily;
}

const Family& mxfp4_family() noexcept {
  static constexpr Family kFamily{mx_scale<kMaxExponentE2m1>, encode_e2m1, decode_e2m1};
  return kFamily;
}

}  // namespace conclave::quant
