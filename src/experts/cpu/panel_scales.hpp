// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Scales of a panel's columns as a checkpoint has them -> f32, for any registers that have the decode_... of
// codes_<isa>.hpp.
#pragma once

#include "experts/cpu/scaled_formats.hpp"

namespace conclave::experts::grouped {
namespace {

/// Times 1 / Factor: a code is decoded as Factor times its value. Factors are powers of two, so that nothing is
/// rounded.
template <class Simd, const ScaledFormat& Format>
[[gnu::always_inline]] inline void load_panel_scales(const std::uint8_t* from, const float* global, float factor,
                                                     float* to) {
  using Vec = typename Simd::Vec;
  float inverse = 1.0f / factor;
  Vec scale[2];
  if constexpr (Format.scale == DType::f32) {
    scale[0] = Simd::load(reinterpret_cast<const float*>(from));
    scale[1] = Simd::load(reinterpret_cast<const float*>(from) + Simd::kLanes);
  } else if constexpr (Format.scale == DType::e8m0) {
    Simd::decode_e8m0(from, scale);
  } else {
    Simd::decode_e4m3_scales(from, scale);
    inverse /= Simd::kE4m3ScaleFactor;
  }
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) {
    if constexpr (Format.has_global_scale) scale[v] = scale[v] * Simd::load(global + v * Simd::kLanes);
    Simd::store(to + v * Simd::kLanes, scale[v] * Simd::set(inverse));
  }
}

/// An element without zero points.
struct NoZeros {
  struct Zeros {};
  static void spread_zeros(const std::uint8_t* /*zero_points*/, Zeros* /*to*/) {}
};

}  // namespace
}  // namespace conclave::experts::grouped
