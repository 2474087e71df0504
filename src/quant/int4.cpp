// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// 4-bit integers in halves of bytes. Without zero points the half holds the value plus 8, -8 to 7, and the scale is the
// smallest that fits both ends. With them it holds 0 to 15, and zero is a code of its own, so that it stays exact. In:
// f32 runs. Out: halves, scales, zero points.
#include <algorithm>
#include <limits>

#include "quant/elements.hpp"
#include "quant/family.hpp"

namespace conclave::quant {
namespace {

constexpr std::uint8_t kMiddle = 8;

float not_too_small(float scale) {
  return scale > kSmallestAmax ? scale : kSmallestAmax;
}

std::uint8_t code_between_0_and_15(float steps) {
  return std::isnan(steps) ? std::uint8_t{0} : static_cast<std::uint8_t>(std::clamp(steps, 0.0f, 15.0f));
}

GroupScale int4_scale(const GroupStats& stats, float /*global*/) {
  if (!stats.finite) return {std::numeric_limits<float>::quiet_NaN(), kMiddle};
  return {not_too_small(std::max(stats.high / 7.0f, -stats.low / 8.0f)), kMiddle};
}

GroupScale int4_zp_scale(const GroupStats& stats, float /*global*/) {
  if (!stats.finite) return {std::numeric_limits<float>::quiet_NaN(), 0};
  // In halves, because the range of two large numbers may overflow.
  const float scale = not_too_small((stats.high / 15.0f) - (stats.low / 15.0f));
  return {scale, code_between_0_and_15(std::nearbyint(-stats.low / scale))};
}

void encode_int4(const float* x, std::int64_t first, std::int64_t count, GroupScale scale, std::uint8_t* row) {
  const auto zero = static_cast<float>(scale.zero_point);
  pack_nibbles(first, count, row,
               [&](std::int64_t i) { return code_between_0_and_15(std::nearbyint(x[i] / scale.value) + zero); });
}

void decode_int4(const std::uint8_t* row, std::int64_t first, std::int64_t count, GroupScale scale, float* out) {
  for (std::int64_t i = 0; i < count; ++i)
    out[i] = static_cast<float>(nibble(row, first + i) - static_cast<int>(scale.zero_point)) * scale.value;
}

}  // namespace

const Family& int4_family() noexcept {
  static constexpr Family kFamily{int4_scale, encode_int4, decode_int4};
  return kFamily;
}

const Family& int4_zp_family() noexcept {
  static constexpr Family kFamily{int4_zp_scale, encode_int4, decode_int4};
  return kFamily;
}

}  // namespace conclave::quant
