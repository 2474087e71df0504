// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Symmetric 8-bit integers, -127 to 127, with f32 scales of any granularity. In: f32 runs. Out: one byte for each
// element, scale = amax / 127. With a given scale a NaN becomes 0: integers have no other place for it.
#include <limits>

#include "quant/family.hpp"

namespace conclave::quant {
namespace {

constexpr float kMaxInt8 = 127.0f;

GroupScale int8_scale(const GroupStats& stats, float /*global*/) {
  if (!stats.finite) return {std::numeric_limits<float>::quiet_NaN()};
  return {(stats.amax() > kSmallestAmax ? stats.amax() : kSmallestAmax) / kMaxInt8};
}

void encode_int8(const float* x, std::int64_t first, std::int64_t count, GroupScale scale, std::uint8_t* row) {
  for (std::int64_t i = 0; i < count; ++i) {
    // Comparisons that are false for NaN, in this order, leave 0.
    const float steps = std::nearbyint(x[i] / scale.value);
    const float code = steps > kMaxInt8 ? kMaxInt8 : steps < -kMaxInt8 ? -kMaxInt8 : std::isnan(steps) ? 0.0f : steps;
    row[first + i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(code));
  }
}

void decode_int8(const std::uint8_t* row, std::int64_t first, std::int64_t count, GroupScale scale, float* out) {
  for (std::int64_t i = 0; i < count; ++i)
    out[i] = static_cast<float>(static_cast<std::int8_t>(row[first + i])) * scale.value;
}

}  // namespace

const Family& int8_family() noexcept {
  static constexpr Family kFamily{int8_scale, encode_int8, decode_int8};
  return kFamily;
}

}  // namespace conclave::quant
