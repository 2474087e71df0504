// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Rows and weights in int8 codes, widened to int16 and multiplied two at a time. Not the instruction for bytes: its
// sums of two products saturate at 16 bits, and keeping them from it takes as many instructions as widening.
#include <cstring>

#include "experts/cpu/integer_part.hpp"
#include "experts/cpu/simd_avx2.hpp"

namespace conclave::experts::grouped {
namespace {

struct Int8Int8Avx2 : Avx2 {
  using Weight = std::uint8_t;
  using Input = std::int16_t;
  static constexpr int kWeightGroup = 4;
  static constexpr int kSteps = 2;
  static constexpr int kInputOffset = 0;

  static Vec input(const Input* x) {
    std::int32_t pair;
    std::memcpy(&pair, x, sizeof(pair));
    return _mm256_castsi256_ps(_mm256_set1_epi32(pair));
  }
  /// Of four bytes of each column the even ones, or the odd ones, as int16: as in IntegerRows::place().
  template <int Step>
  static Vec weight(const Weight* w) {
    __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
    if constexpr (Step == 0) bytes = _mm256_slli_epi16(bytes, 8);
    return _mm256_castsi256_ps(_mm256_srai_epi16(bytes, 8));
  }
  static Vec product(Vec in, Vec w, Vec sum) {
    const __m256i pairs = _mm256_madd_epi16(_mm256_castps_si256(in), _mm256_castps_si256(w));
    __m256i added = _mm256_add_epi32(_mm256_castps_si256(sum), pairs);
    // One product and its addition after the other. Integer additions may be reordered, and GCC would add the products
    // of both steps to each other first, for which there are not enough registers: half the speed.
    asm volatile("" : "+x"(added));
    return _mm256_castsi256_ps(added);
  }
};

}  // namespace

extern constinit const Engine kInt8Int8Avx2 = make_integer_engine<Int8Int8Avx2>(
    {"experts/cpu_int8_int8_avx2", "AVX2, exact products of int8 codes", &CpuFeatures::avx2, "AVX2 with FMA and F16C"});

}  // namespace conclave::experts::grouped
