// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// 4-bit codes times rows in digits, for DigitKernel: vpmaddubsw, 32 products of an unsigned and a signed byte added in
// pairs to 16 bits, which saturate: no code may be so large that they do.
#pragma once

#include "experts/cpu/codes_avx2.hpp"
#include "experts/cpu/digits.hpp"

namespace conclave::experts::grouped {
namespace {

struct DigitsAvx2 : CodesAvx2 {
  using Codes = __m256i;
  using Int = __m256i;
  struct Partial {
    __m256i words;  ///< Two of each column.
  };

  template <int Half>
  static Codes nibbles(const std::uint8_t* p) {
    const __m256i bytes = load_bytes(p);
    return _mm256_and_si256(Half == 0 ? bytes : _mm256_srli_epi16(bytes, 4), _mm256_set1_epi8(15));
  }
  static __m256i four_bytes(const std::int32_t* p) { return _mm256_set1_epi32(*p); }
  static Partial start(Codes codes, __m256i digits) { return {_mm256_maddubs_epi16(codes, digits)}; }
  static Partial add(Partial sum, Codes codes, __m256i digits) {
    __m256i words = _mm256_add_epi16(sum.words, _mm256_maddubs_epi16(codes, digits));
    // Integers may be added in any order, and GCC makes trees of such sums: more of them than there are registers.
    asm("" : "+x"(words));
    return {words};
  }
  /// low + 2^7 middle + 2^14 high. Of a group it is at most 128 * 15 * 2^20 / (1 + 2^-6), and fits.
  static Int join(Partial low, Partial middle, Partial high) {
    const Int upper = _mm256_add_epi32(_mm256_madd_epi16(high.words, _mm256_set1_epi16(1 << 2 * kDigitBits)),
                                       _mm256_madd_epi16(middle.words, _mm256_set1_epi16(1 << kDigitBits)));
    return _mm256_add_epi32(upper, _mm256_madd_epi16(low.words, _mm256_set1_epi16(1)));
  }
  static Int add(Int a, Int b) { return _mm256_add_epi32(a, b); }
  static Vec to_floats(Int sums) { return _mm256_cvtepi32_ps(sums); }

  static Int zero() { return _mm256_setzero_si256(); }
  static std::int32_t total(Int sums) {
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(1, 0, 3, 2)));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(2, 3, 0, 1)));
    return _mm_cvtsi128_si32(half);
  }
  /// Of the largest magnitude; bits are in the order of magnitudes, and those of infinity and NaN above all others.
  template <std::size_t N>
  static std::uint32_t largest_bits(const Vec (&values)[N]) {
    __m256i most = _mm256_setzero_si256();
    for (const Vec& v : values)
      most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7FFFFFFF)));
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(1, 0, 3, 2)));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(2, 3, 0, 1)));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(half));
  }
  /// Eight numbers, rounded to nearest -> two quads. Returns `sums` and the rounded numbers.
  static Int store_digits(Vec numbers, std::int32_t* to, Int sums) {
    __m256i left = _mm256_cvtps_epi32(numbers);
    sums = _mm256_add_epi32(sums, left);
    __m256i digit[kDigits];
    for (__m256i& d : digit) {
      d = _mm256_srai_epi32(_mm256_slli_epi32(left, 32 - kDigitBits), 32 - kDigitBits);
      left = _mm256_srai_epi32(_mm256_sub_epi32(left, d), kDigitBits);
    }
    // Packing works on 128 bits at a time, which are a quad.
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(digit[0], digit[1]),
                                             _mm256_packs_epi32(digit[2], _mm256_setzero_si256()));
    store_quad(_mm256_castsi256_si128(bytes), to);
    store_quad(_mm256_extracti128_si256(bytes, 1), to + kDigits);
    return sums;
  }

 private:
  /// Twelve bytes and none behind them.
  static void store_quad(__m128i bytes, std::int32_t* to) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), bytes);
    to[2] = _mm_extract_epi32(bytes, 2);
  }
};

/// 0 to 15, the zero point taken from the sums: sixteen times two products of 15 and -64 are -30720.
template <const ScaledFormat& Format>
struct Int4DigitsAvx2 : DigitsAvx2 {
  static constexpr const ScaledFormat& kFormat = Format;
  static constexpr int kChain = 16;
  static constexpr std::int32_t kSumFactor = 1;
  using Offset = Int;  ///< Zero points.
  static void spread_offsets(const std::uint8_t* zeros, std::int32_t* to) {
    for (int v = 0; v < 2; ++v) {
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(zeros + 8 * v));
      _mm256_store_si256(reinterpret_cast<__m256i*>(to + 8 * v), _mm256_cvtepu8_epi32(bytes));
    }
  }
  static Offset load_offset(const std::int32_t* from) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
  }
  static Int without(Int sum, Offset zeros, const std::int32_t* row_sum) {
    return _mm256_sub_epi32(sum, _mm256_mullo_epi32(zeros, four_bytes(row_sum)));
  }
  static void load_scales(const std::uint8_t* from, const float* global, float* to) {
    load_panel_scales<CodesAvx2, Format>(from, global, 1.0f, to);
  }
  template <int Half>
  static Codes prepare(const std::uint8_t* codes) {
    return nibbles<Half>(codes);
  }
};

/// Twice their value and 12, which is 0 to 24: eight times two products of 24 and -64 are -24576.
template <const ScaledFormat& Format>
struct E2m1DigitsAvx2 : DigitsAvx2 {
  static constexpr const ScaledFormat& kFormat = Format;
  static constexpr int kChain = 8;
  static constexpr std::int32_t kSumFactor = 12;
  static_assert(Format.scale_group <= 64, "sums of 2^20 * 24 fit");
  struct Offset {};
  static void spread_offsets(const std::uint8_t* /*zeros*/, std::int32_t* /*to*/) {}
  static Offset load_offset(const std::int32_t* /*from*/) { return {}; }
  static Int without(Int sum, Offset /*offset*/, const std::int32_t* row_sum) {
    return _mm256_sub_epi32(sum, four_bytes(row_sum));
  }
  static void load_scales(const std::uint8_t* from, const float* global, float* to) {
    load_panel_scales<CodesAvx2, Format>(from, global, 2.0f, to);
  }
  template <int Half>
  static Codes prepare(const std::uint8_t* codes) {
    const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), nibbles<Half>(codes));
  }
};

}  // namespace
}  // namespace conclave::experts::grouped
