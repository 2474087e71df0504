// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Codes of four bits in quads -> eight floats in a register, for GroupSumKernel. A lane is a column: its four bytes
// become four signed numbers, and each of those, moved to the top of the lane, is an integer times 2^24. Every step is
// one instruction on all lanes; widening bytes from register to register is not.
#pragma once

#include "experts/cpu/decode_avx2.hpp"
#include "experts/cpu/scaled_elements.hpp"

namespace conclave::experts::grouped {
namespace {

struct QuadsAvx2 : DecodeAvx2 {
  using Codes = __m256i;
  static constexpr float kNumberFactor = 0x1p24f;  ///< What number() returns is this many times the number.

  template <int J>
  static Vec number(Codes bytes) {
    if constexpr (J == 0) return _mm256_cvtepi32_ps(_mm256_slli_epi32(bytes, 24));
    if constexpr (J == 3) return _mm256_cvtepi32_ps(_mm256_and_si256(bytes, _mm256_set1_epi32(-16777216)));
    // -1: zero.
    constexpr int kIndex0 = J << 24 | 0x00FFFFFF;
    const __m256i index = _mm256_broadcastsi128_si256(
        _mm_setr_epi32(kIndex0, kIndex0 + (4 << 24), kIndex0 + (8 << 24), kIndex0 + (12 << 24)));
    return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(bytes, index));
  }
  static Codes nibbles(const std::uint8_t* p, int half) {
    const __m256i bytes = load_bytes(p);
    return _mm256_and_si256(half == 0 ? bytes : _mm256_srli_epi16(bytes, 4), _mm256_set1_epi8(15));
  }
  static __m256i load_bytes(const std::uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  /// A byte of each column -> four.
  static void spread_bytes(const std::uint8_t* p, std::uint8_t* to) {
    for (int v = 0; v < 2; ++v) {
      const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * v)));
      _mm256_store_si256(reinterpret_cast<__m256i*>(to + 32 * v),
                         _mm256_mullo_epi32(wide, _mm256_set1_epi32(0x01010101)));
    }
  }
};

template <const ScaledFormat& Format>
struct Int4Quads : QuadsAvx2 {
  static constexpr const ScaledFormat& kFormat = Format;
  static void load_scales(const std::uint8_t* from, const float* global, float* to) {
    load_panel_scales<QuadsAvx2, Format>(from, global, 1.0f / kNumberFactor, to);
  }
  static void spread_zero_points(const std::uint8_t* from, std::uint8_t* to) { spread_bytes(from, to); }
  static Codes prepare(const std::uint8_t* codes, const std::uint8_t* zero_points, int half) {
    return _mm256_sub_epi8(nibbles(codes, half), load_bytes(zero_points));
  }
};

template <const ScaledFormat& Format>
struct E2m1Quads : QuadsAvx2 {
  static constexpr const ScaledFormat& kFormat = Format;
  static void load_scales(const std::uint8_t* from, const float* global, float* to) {
    load_panel_scales<QuadsAvx2, Format>(from, global, 1.0f / (kNumberFactor * kE2m1Factor), to);
  }
  static void spread_zero_points(const std::uint8_t* /*from*/, std::uint8_t* /*to*/) {}
  static Codes prepare(const std::uint8_t* codes, const std::uint8_t* /*zero_points*/, int half) {
    const __m128i twice = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(twice), nibbles(codes, half));
  }
};

}  // namespace
}  // namespace conclave::experts::grouped
