// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Codes and scales -> f32 registers, for any registers that have the decode_... of decode_<isa>.hpp. Where decoding
// gives a multiple of the value, the scales carry the inverse: powers of two, so that nothing is rounded by it.
#pragma once

#include "experts/cpu/scaled_formats.hpp"

namespace conclave::experts::grouped {
namespace {

/// Scales of a panel's columns as f32, times 1 / Inverse.
template <class Simd, const ScaledFormat& Format>
[[gnu::always_inline]] inline void load_panel_scales(const std::uint8_t* from, const float* global, float inverse,
                                                     float* to) {
  using Vec = typename Simd::Vec;
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

template <class Simd, const ScaledFormat& Format>
struct Int8Codes : Simd {
  using Vec = typename Simd::Vec;
  static constexpr const ScaledFormat& kFormat = Format;
  static constexpr bool kPairs = false;
  [[gnu::always_inline]] static void load_scales(const std::uint8_t* from, const float* global, float* to) {
    load_panel_scales<Simd, Format>(from, global, 1.0f, to);
  }
  [[gnu::always_inline]] static void decode(const std::uint8_t* codes, const std::uint8_t*, Vec (&w)[1][2]) {
    Simd::decode_i8(codes, w[0]);
  }
  [[gnu::always_inline]] static Vec scaled(Vec w, Vec scale) { return w * scale; }
};

template <class Simd, const ScaledFormat& Format>
struct E4m3Codes : Simd {
  using Vec = typename Simd::Vec;
  static constexpr const ScaledFormat& kFormat = Format;
  static constexpr bool kPairs = false;
  /// Packing refuses scales of 2^8 and more, which would overflow here.
  [[gnu::always_inline]] static void load_scales(const std::uint8_t* from, const float* global, float* to) {
    load_panel_scales<Simd, Format>(from, global, 1.0f / Simd::kE4m3Factor, to);
  }
  [[gnu::always_inline]] static void decode(const std::uint8_t* codes, const std::uint8_t*, Vec (&w)[1][2]) {
    Simd::decode_e4m3(codes, w[0]);
  }
  /// The codes may be subnormal here. Zen 3 takes no longer to multiply those when it adds, but does when it does not.
  [[gnu::always_inline]] static Vec scaled(Vec w, Vec scale) { return Simd::multiply_add(w, scale, Simd::set(0.0f)); }
};

template <class Simd, const ScaledFormat& Format>
struct Int4Codes : Simd {
  using Vec = typename Simd::Vec;
  static constexpr const ScaledFormat& kFormat = Format;
  static constexpr bool kPairs = true;
  [[gnu::always_inline]] static void load_scales(const std::uint8_t* from, const float* global, float* to) {
    load_panel_scales<Simd, Format>(from, global, 1.0f, to);
  }
  [[gnu::always_inline]] static void decode(const std::uint8_t* codes, const std::uint8_t* zero_points,
                                            Vec (&w)[2][2]) {
    Simd::decode_int4(codes, zero_points, w);
  }
  [[gnu::always_inline]] static Vec scaled(Vec w, Vec scale) { return w * scale; }
};

template <class Simd, const ScaledFormat& Format>
struct E2m1Codes : Simd {
  using Vec = typename Simd::Vec;
  static constexpr const ScaledFormat& kFormat = Format;
  static constexpr bool kPairs = true;
  [[gnu::always_inline]] static void load_scales(const std::uint8_t* from, const float* global, float* to) {
    load_panel_scales<Simd, Format>(from, global, 1.0f / Simd::kE2m1Factor, to);
  }
  [[gnu::always_inline]] static void decode(const std::uint8_t* codes, const std::uint8_t*, Vec (&w)[2][2]) {
    Simd::decode_e2m1(codes, w);
  }
  [[gnu::always_inline]] static Vec scaled(Vec w, Vec scale) { return w * scale; }
};

}  // namespace
}  // namespace conclave::experts::grouped
