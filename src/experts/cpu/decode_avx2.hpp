// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Codes -> eight floats in a register, both registers of a panel at once: a byte of each of its 16 columns.
#pragma once

#include "experts/cpu/simd_avx2.hpp"

namespace conclave::experts::grouped {
namespace {

struct DecodeAvx2 : Avx2 {
  /// What decode_e2m1 returns is this many times the value: integers are what a shuffle of bytes can find.
  static constexpr float kE2m1Factor = 2.0f;
  /// And decode_e4m3: 2^-120. Seven bits of an e4m3 are the top of an f32's magnitude but for the bias, subnormals
  /// included, if the upper four bits of the exponent are 0. NaN would be 480: packing refuses it.
  static constexpr float kE4m3Factor = 0x1p-120f;

  /// Bytes are widened as they are loaded: between registers the same takes two and a half times as long on Zen 3.
  static void decode_i8(const std::uint8_t* p, Vec (&w)[2]) {
    for (int v = 0; v < 2; ++v) w[v] = _mm256_cvtepi32_ps(widen(p + 8 * v));
  }
  /// The conversion from f16, which e4m3 is close to as well, takes three times as long as these two operations.
  static void decode_e4m3(const std::uint8_t* p, Vec (&w)[2]) {
    const __m256i sign_and_magnitude = _mm256_set1_epi32(static_cast<int>(0x87F00000));
    for (int v = 0; v < 2; ++v)
      w[v] = _mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(widen(p + 8 * v), 20), sign_and_magnitude));
  }
  /// Nibbles less the zero points of their columns.
  static void decode_int4(const std::uint8_t* p, const std::uint8_t* zero_points, Vec (&w)[2][2]) {
    const __m128i zero = load(zero_points);
    widen(_mm_sub_epi8(low_nibbles(load(p)), zero), w[0]);
    widen(_mm_sub_epi8(high_nibbles(load(p)), zero), w[1]);
  }
  static void decode_e2m1(const std::uint8_t* p, Vec (&w)[2][2]) {
    const __m128i twice = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    widen(_mm_shuffle_epi8(twice, low_nibbles(load(p))), w[0]);
    widen(_mm_shuffle_epi8(twice, high_nibbles(load(p))), w[1]);
  }

  using Avx2::load;
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
    const __m256i words = _mm256_slli_epi16(_mm256_cvtepi8_epi16(load(p)), 7);
    const __m256i f16 = _mm256_and_si256(words, _mm256_set1_epi16(static_cast<short>(0xBFFF)));
    w[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(f16));
    w[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(f16, 1));
  }

 private:
  static __m256i widen(const std::uint8_t* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  static __m128i load(const std::uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static __m128i low_nibbles(__m128i c) { return _mm_and_si128(c, _mm_set1_epi8(15)); }
  static __m128i high_nibbles(__m128i c) { return low_nibbles(_mm_srli_epi16(c, 4)); }
  static void widen(__m128i bytes, Vec (&w)[2]) {
    w[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    w[1] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)));
  }
};

}  // namespace
}  // namespace conclave::experts::grouped
