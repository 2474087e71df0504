// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Codes -> sixteen floats in a register, for GroupSumKernel. With two vector units, what counts is the operations on
// each sixteen weights beside their product: 2 for int8, 3.75 for e4m3, 1.5 for e2m1, 2.1 for int4.
#pragma once

#include "experts/cpu/panel_scales.hpp"
#include "experts/cpu/simd_avx512.hpp"

namespace conclave::experts::grouped {
namespace {

struct CodesAvx512 : Avx512 {
  static constexpr float kInputFactor = 1.0f;  ///< Rows are packed as this many times their numbers.
  static __m512i load_bytes(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
  /// One byte of each of sixteen columns, or two.
  static __m128i load_columns(const std::uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

  /// Scales of both registers' columns: 2^(code - 127), where code 0 is the subnormal 2^-127; or 2^-8 of an e4m3.
  static void decode_e8m0(const std::uint8_t* p, Vec (&w)[2]) {
    for (int v = 0; v < 2; ++v) {
      const __m512i code = _mm512_cvtepu8_epi32(load_columns(p + 16 * v));
      w[v] = _mm512_castsi512_ps(_mm512_max_epi32(_mm512_slli_epi32(code, 23), _mm512_set1_epi32(0x00400000)));
    }
  }
  static constexpr float kE4m3ScaleFactor = 1.0f / 256;
  static void decode_e4m3_scales(const std::uint8_t* p, Vec (&w)[2]) {
    const __m512i words = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    const __m512i f16 = e4m3_at_top(_mm512_slli_epi16(words, 8));
    w[0] = from_f16<0>(f16);
    w[1] = from_f16<1>(f16);
  }

  /// An e4m3 in the upper byte of each word, whatever is below it. It is an f16 but for the width and bias of the
  /// exponent: a 0 in front of its four bits makes it one, of 2^-8 times the value and subnormals included. NaN would
  /// be 480: packing refuses it.
  static __m512i e4m3_at_top(__m512i words) {
    return _mm512_and_si512(_mm512_srai_epi16(words, 1), _mm512_set1_epi16(static_cast<short>(0xBF80)));
  }
  template <int Half>
  static Vec from_f16(__m512i words) {
    if constexpr (Half == 0) return _mm512_cvtph_ps(_mm512_castsi512_si256(words));
    return _mm512_cvtph_ps(_mm512_extracti64x4_epi64(words, 1));
  }
};

/// Quads: each byte, moved to the top of its lane, is an integer times 2^24.
template <const ScaledFormat& Format>
struct Int8Avx512 : CodesAvx512, NoZeros {
  static constexpr const ScaledFormat& kFormat = Format;
  using Codes = __m512i;
  static constexpr int kCodeRegisters = 1;
  static void load_scales(const std::uint8_t* from, const float* global, float* to) {
    load_panel_scales<CodesAvx512, Format>(from, global, 0x1p24f, to);
  }
  template <int>
  static Codes prepare(const std::uint8_t* codes, const Zeros& /*zeros*/) {
    return load_bytes(codes);
  }
  template <int J>
  static Vec number(Codes bytes) {
    if constexpr (J == 0) return _mm512_cvtepi32_ps(_mm512_slli_epi32(bytes, 24));
    if constexpr (J == 3) return _mm512_cvtepi32_ps(_mm512_and_si512(bytes, _mm512_set1_epi32(-16777216)));
    // -1: zero.
    constexpr int kIndex0 = J << 24 | 0x00FFFFFF;
    const __m512i index =
        _mm512_broadcast_i32x4(_mm_setr_epi32(kIndex0, kIndex0 + (4 << 24), kIndex0 + (8 << 24), kIndex0 + (12 << 24)));
    return _mm512_cvtepi32_ps(_mm512_shuffle_epi8(bytes, index));
  }
};

/// Pairs: a word has the codes of two k, and half a register the words of sixteen columns. Through f16, because a
/// product with a subnormal f32 takes 140 cycles on Intel's cores.
template <const ScaledFormat& Format>
struct E4m3Avx512 : CodesAvx512, NoZeros {
  static constexpr const ScaledFormat& kFormat = Format;
  struct Codes {
    __m512i even, odd;  ///< k 0 and 2, k 1 and 3.
  };
  static constexpr int kCodeRegisters = 2;
  static void load_scales(const std::uint8_t* from, const float* global, float* to) {
    load_panel_scales<CodesAvx512, Format>(from, global, 1.0f / 256, to);
  }
  template <int>
  static Codes prepare(const std::uint8_t* codes, const Zeros& /*zeros*/) {
    const __m512i bytes = load_bytes(codes);
    return {e4m3_at_top(_mm512_slli_epi16(bytes, 8)), e4m3_at_top(bytes)};
  }
  template <int J>
  static Vec number(const Codes& codes) {
    return from_f16<J / 2>(J % 2 == 0 ? codes.even : codes.odd);
  }
};

/// Octets: four nibbles stand in the mantissa's 23 bits without being moved. Below an exponent that makes the lowest of
/// the nibble's bits worth 1, it is 2^n + code, from which 2^n + zero point is subtracted: both exact.
template <const ScaledFormat& Format>
struct Int4Avx512 : CodesAvx512 {
  static constexpr const ScaledFormat& kFormat = Format;
  struct Codes {
    __m512i nibbles;
    const float* zeros;
  };
  static constexpr int kCodeRegisters = 1;
  struct Zeros {
    float of_nibble[4][16];  ///< 2^n + zero point, for each nibble's n.
  };
  static void load_scales(const std::uint8_t* from, const float* global, float* to) {
    load_panel_scales<CodesAvx512, Format>(from, global, 1.0f, to);
  }
  static void spread_zeros(const std::uint8_t* from, Zeros* to) {
    for (int v = 0; v < 2; ++v) {
      const Vec zero = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_columns(from + 16 * v)));
      for (int j = 0; j < 4; ++j)
        store(to[v].of_nibble[j], _mm512_add_ps(zero, set(static_cast<float>(1 << (23 - 4 * j)))));
    }
  }
  template <int Half>
  static Codes prepare(const std::uint8_t* codes, const Zeros& zeros) {
    const __m512i bytes = load_bytes(codes);
    return {Half == 0 ? bytes : _mm512_srli_epi32(bytes, 16), zeros.of_nibble[0]};
  }
  template <int J>
  static Vec number(const Codes& codes) {
    constexpr int kAndThenOr = 0xEA;  // (a & b) | c
    const __m512i sum = _mm512_ternarylogic_epi32(codes.nibbles, _mm512_set1_epi32(15 << 4 * J),
                                                  _mm512_set1_epi32((150 - 4 * J) << 23), kAndThenOr);
    return _mm512_sub_ps(_mm512_castsi512_ps(sum), load(codes.zeros + 16 * J));
  }
};

/// Octets: a table of sixteen floats is one register, and its index the lowest four bits of each lane, whatever is
/// above them. So a load one byte further on is a shift by eight that the load unit does; it reads up to three bytes
/// behind the codes.
template <const ScaledFormat& Format>
struct E2m1Avx512 : CodesAvx512, NoZeros {
  static constexpr const ScaledFormat& kFormat = Format;
  struct Codes {
    __m512i first, second;  ///< k 0 and 1, k 2 and 3.
  };
  static constexpr int kCodeRegisters = 2;
  static void load_scales(const std::uint8_t* from, const float* global, float* to) {
    load_panel_scales<CodesAvx512, Format>(from, global, 1.0f, to);
  }
  template <int Half>
  static Codes prepare(const std::uint8_t* codes, const Zeros& /*zeros*/) {
    return {load_bytes(codes + 2 * Half), load_bytes(codes + 2 * Half + 1)};
  }
  template <int J>
  static Vec number(const Codes& codes) {
    const __m512 numbers = _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6);
    const __m512i index = J < 2 ? codes.first : codes.second;
    return _mm512_permutexvar_ps(J % 2 == 0 ? index : _mm512_srli_epi32(index, 4), numbers);
  }
};

}  // namespace
}  // namespace conclave::experts::grouped
