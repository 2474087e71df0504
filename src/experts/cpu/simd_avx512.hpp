// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Sixteen floats in a register: what the shared templates need of AVX-512 F, BW, VL and DQ.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace conclave::experts::grouped {
namespace {

struct Avx512 {
  using Vec = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kSums = 24;  ///< Of 32 registers.

  static Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
  static Vec broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static Vec set(float x) { return _mm512_set1_ps(x); }
  static Vec multiply_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  /// `x` unless it is beyond the bound; NaN stays NaN, because the instruction returns its second operand then.
  static Vec at_most(Vec x, Vec bound) { return _mm512_min_ps(bound, x); }
  static Vec at_least(Vec x, Vec bound) { return _mm512_max_ps(bound, x); }
  /// x * 2^n, where the low bits of `shifted` hold n and the result is a normal number.
  static Vec scale(Vec x, Vec shifted) {
    const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), n));
  }

  static Vec load_bf16(const std::uint16_t* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static Vec load_f16(const std::uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  /// Even and odd members of sixteen bf16 pairs: a bf16 is the upper half of a float.
  static Vec even_of_pairs(const std::uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
  }
  static Vec odd_of_pairs(const std::uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(-65536)));
  }

  /// Nearest, ties to even; a NaN is made quiet instead of rounded, which could turn it into infinity. Not the bf16
  /// extension's own conversion: that one flushes subnormals, and parts would differ by instruction set.
  static void store_bf16(std::uint16_t* p, Vec v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i kept = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16)));
  }
  static void store_f16(std::uint16_t* p, Vec v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
};

}  // namespace
}  // namespace conclave::experts::grouped
