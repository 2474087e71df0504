// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// e2m1 elements, an e4m3 scale for 16 of them, and an f32 scale above that maps the largest block scale to 448. In: f32
// runs. Out: codes, scale = e4m3(amax / 6 / global), global = amax of the tensor (or token) / (448 * 6).
#include <limits>

#include "quant/elements.hpp"
#include "quant/family.hpp"

namespace conclave::quant {
namespace {

GroupScale nvfp4_scale(const GroupStats& stats, float global) {
  if (!stats.finite) return {std::numeric_limits<float>::quiet_NaN()};
  return {e4m3_to_f32(f32_to_e4m3(stats.amax() / kMaxE2m1 / global))};
}

}  // namespace

float nvfp4_global_scale(const GroupStats& stats) noexcept {
  if (!stats.finite) return std::numeric_limits<float>::quiet_NaN();
  return (stats.amax() > kSmallestAmax ? stats.amax() : kSmallestAmax) / (kMaxE4m3 * kMaxE2m1);
}

const Family& nvfp4_family() noexcept {
  static constexpr Family kFamily{nvfp4_scale, encode_e2m1, decode_e2m1};
  return kFamily;
}

}  // namespace conclave::quant
