// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: rows of bf16, f16 or f32. Out: the same values, eight at a time with AVX2 and F16C. Tails go through a padded
// block, so that every element takes the same instructions.
#include <immintrin.h>

#include <cstring>

#include "cpu/float_convert.hpp"
#include "cpu/variants.hpp"

namespace conclave::cpu {
namespace {

__m256 widen_bf16(const std::uint16_t* from) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

__m256 widen_f16(const std::uint16_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

/// The rounding of f32_to_bf16, and its exception for NaN, in eight lanes.
__m128i narrow_bf16(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}

__m128i narrow_f16(__m256 value) {
  return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
}

template <auto Widen>
void widen_row(const std::uint16_t* from, std::int64_t count, float* to) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) _mm256_storeu_ps(to + i, Widen(from + i));
  if (i == count) return;
  std::uint16_t in[8] = {};
  float out[8];
  std::memcpy(in, from + i, static_cast<std::size_t>(count - i) * sizeof(*in));
  _mm256_storeu_ps(out, Widen(in));
  std::memcpy(to + i, out, static_cast<std::size_t>(count - i) * sizeof(*out));
}

template <auto Narrow>
void narrow_row(const float* from, std::int64_t count, std::uint16_t* to) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), Narrow(_mm256_loadu_ps(from + i)));
  if (i == count) return;
  float in[8] = {};
  std::uint16_t out[8];
  std::memcpy(in, from + i, static_cast<std::size_t>(count - i) * sizeof(*in));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), Narrow(_mm256_loadu_ps(in)));
  std::memcpy(to + i, out, static_cast<std::size_t>(count - i) * sizeof(*out));
}

}  // namespace

void bf16_to_f32_avx2(const std::uint16_t* from, std::int64_t count, float* to) {
  widen_row<widen_bf16>(from, count, to);
}
void f16_to_f32_avx2(const std::uint16_t* from, std::int64_t count, float* to) {
  widen_row<widen_f16>(from, count, to);
}
void f32_to_bf16_avx2(const float* from, std::int64_t count, std::uint16_t* to) {
  narrow_row<narrow_bf16>(from, count, to);
}
void f32_to_f16_avx2(const float* from, std::int64_t count, std::uint16_t* to) {
  narrow_row<narrow_f16>(from, count, to);
}

}  // namespace conclave::cpu
