// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Codes -> sixteen floats in a register, both registers of a panel at once: a byte of each of its 32 columns.
#pragma once

#include "experts/cpu/simd_avx512.hpp"

namespace conclave::experts::grouped {
namespace {

struct DecodeAvx512 : Avx512 {
  static constexpr float kE2m1Factor = 1.0f;
  /// An e4m3 is the upper byte of an f16 but for the width and bias of the exponent: a 0 in front of its four bits
  /// makes it one, subnormals included. NaN would be 480: packing refuses it.
  static constexpr float kE4m3Factor = 1.0f / 256;
  static constexpr float kE4m3ScaleFactor = kE4m3Factor;

  static void decode_i8(const std::uint8_t* p, Vec (&w)[2]) {
    for (int v = 0; v < 2; ++v) w[v] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load(p + 16 * v)));
  }
  static void decode_e4m3(const std::uint8_t* p, Vec (&w)[2]) {
    const __m512i words = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    const __m512i f16 = _mm512_and_si512(_mm512_slli_epi16(words, 7), _mm512_set1_epi16(static_cast<short>(0xBFFF)));
    w[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(f16));
    w[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(f16, 1));
  }
  /// A table of sixteen floats is one register, and its index is four bits of each lane, whatever is above them.
  static void decode_int4(const std::uint8_t* p, const std::uint8_t* zero_points, Vec (&w)[2][2]) {
    const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    look_up(p, numbers, w);
    for (int v = 0; v < 2; ++v) {
      const __m512 zero = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load(zero_points + 16 * v)));
      w[0][v] = _mm512_sub_ps(w[0][v], zero);
      w[1][v] = _mm512_sub_ps(w[1][v], zero);
    }
  }
  static void decode_e2m1(const std::uint8_t* p, Vec (&w)[2][2]) {
    look_up(p, _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6), w);
  }

  using Avx512::load;
  static void decode_e4m3_scales(const std::uint8_t* p, Vec (&w)[2]) { decode_e4m3(p, w); }
  static void decode_e8m0(const std::uint8_t* p, Vec (&w)[2]) {
    for (int v = 0; v < 2; ++v) {
      const __m512i code = _mm512_cvtepu8_epi32(load(p + 16 * v));
      w[v] = _mm512_castsi512_ps(_mm512_max_epi32(_mm512_slli_epi32(code, 23), _mm512_set1_epi32(0x00400000)));
    }
  }

 private:
  static __m128i load(const std::uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static void look_up(const std::uint8_t* p, __m512 table, Vec (&w)[2][2]) {
    for (int v = 0; v < 2; ++v) {
      const __m512i index = _mm512_cvtepu8_epi32(load(p + 16 * v));
      w[0][v] = _mm512_permutexvar_ps(index, table);
      w[1][v] = _mm512_permutexvar_ps(_mm512_srli_epi32(index, 4), table);
    }
  }
};

}  // namespace
}  // namespace conclave::experts::grouped
