// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Codes of eight bits in quads -> eight floats in a register, for GroupSumKernel (those of four: digits_avx2.hpp). A
// lane is a column: its four bytes become four signed numbers, and each of those, moved to the top of the lane, is an
// integer times 2^24. Every step is one instruction on all lanes; widening bytes from register to register is not.
#pragma once

#include "experts/cpu/panel_scales.hpp"
#include "experts/cpu/simd_avx2.hpp"

namespace conclave::experts::grouped {
namespace {

struct CodesAvx2 : Avx2 {
  using Codes = __m256i;
  static constexpr int kCodeRegisters = 1;
  static constexpr float kInputFactor = 1.0f;      ///< Rows are packed as this many times their numbers.
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
  static __m256i load_bytes(const std::uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

  /// Scales of both registers' columns: 2^(code - 127), where code 0 is the subnormal 2^-127; or 2^-8 of an e4m3, which
  /// is an f16 without the upper bit of the exponent: normal numbers, so that a scale of the tensor may multiply them.
  static void decode_e8m0(const std::uint8_t* p, Vec (&w)[2]) {
    for (int v = 0; v < 2; ++v) {
      const __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * v)));
      w[v] = _mm256_castsi256_ps(_mm256_max_epi32(_mm256_slli_epi32(code, 23), _mm256_set1_epi32(0x00400000)));
    }
  }
  static constexpr float kE4m3ScaleFactor = 1.0f / 256;
  static void decode_e4m3_scales(const std::uint8_t* p, Vec (&w)[2]) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m256i words = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
    const __m256i f16 = _mm256_and_si256(words, _mm256_set1_epi16(static_cast<short>(0xBFFF)));
    w[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(f16));
    w[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(f16, 1));
  }
};

template <const ScaledFormat& Format>
struct Int8Avx2 : CodesAvx2, NoZeros {
  static constexpr const ScaledFormat& kFormat = Format;
  static void load_scales(const std::uint8_t* from, const float* global, float* to) {
    load_panel_scales<CodesAvx2, Format>(from, global, kNumberFactor, to);
  }
  template <int>
  static Codes prepare(const std::uint8_t* codes, const Zeros& /*zeros*/) {
    return load_bytes(codes);
  }
};

/// Seven bits of an e4m3 are the top of an f32's magnitude but for the bias, subnormals included, if the upper four
/// bits of the exponent are 0. The conversion from f16, which e4m3 is close to as well, takes longer on Zen 3, and that
/// does not slow down when a product with a subnormal is added to something. NaN would be 480: packing refuses it, and
/// scales of 2^47 and more, which would overflow here. Rows are multiplied by 2^40, or products of numbers below 2^-22
/// would themselves be subnormal and lose their bits.
template <const ScaledFormat& Format>
struct E4m3Avx2 : CodesAvx2, NoZeros {
  static constexpr const ScaledFormat& kFormat = Format;
  static constexpr float kInputFactor = 0x1p40f;
  /// In each word the sign and, four bits below it, the magnitude of one code of two: shifting words takes 9 operations
  /// for 32 codes where shifting lanes takes 11.
  struct Codes {
    __m256i even, odd;
  };
  static constexpr int kCodeRegisters = 2;
  static void load_scales(const std::uint8_t* from, const float* global, float* to) {
    load_panel_scales<CodesAvx2, Format>(from, global, 0x1p-120f * kInputFactor, to);
  }
  template <int>
  static Codes prepare(const std::uint8_t* codes, const Zeros& /*zeros*/) {
    const __m256i bytes = load_bytes(codes);
    return {_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 4), _mm256_srai_epi16(bytes, 4)};
  }
  template <int J>
  static Vec number(const Codes& codes) {
    const __m256i words = J % 2 == 0 ? codes.even : codes.odd;
    const __m256i sign_and_magnitude = _mm256_set1_epi32(static_cast<int>(0x87F00000));
    return _mm256_castsi256_ps(_mm256_and_si256(J / 2 == 0 ? _mm256_slli_epi32(words, 16) : words, sign_and_magnitude));
  }
};

}  // namespace
}  // namespace conclave::experts::grouped
