// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// e4m3 elements with f32 scales of any granularity. In: f32 runs. Out: one byte for each element, scale = amax / 448.
#include <limits>

#include "quant/elements.hpp"
#include "quant/family.hpp"

namespace conclave::quant {
namespace {

GroupScale fp8_scale(const GroupStats& stats, float /*global*/) {
  if (!stats.finite) return {std::numeric_limits<float>::quiet_NaN()};
  return {(stats.amax() > kSmallestAmax ? stats.amax() : kSmallestAmax) / kMaxE4m3};
}

}  // namespace

void encode_e4m3(const float* x, std::int64_t first, std::int64_t count, GroupScale scale, std::uint8_t* row) {
  for (std::int64_t i = 0; i < count; ++i) row[first + i] = f32_to_e4m3(x[i] / scale.value);
}

void decode_e4m3(const std::uint8_t* row, std::int64_t first, std::int64_t count, GroupScale scale, float* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = e4m3_to_f32(row[first + i]) * scale.value;
}

const Family& fp8_family() noexcept {
  static constexpr Family kFamily{fp8_scale, encode_e4m3, decode_e4m3};
  return kFamily;
}

}  // namespace conclave::quant
