// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a tile of a dense product. Out: its dot products, eight lanes of AVX2 with FMA.
#include <immintrin.h>

#include "cpu/dense_tile.hpp"
#include "cpu/variants.hpp"

namespace conclave::cpu {
namespace {

struct Vector8 {
  using Reg = __m256;
  static constexpr int kLanes = 8;
  // 12 sums, 3 elements of a and 1 of w are the 16 registers; 12 independent sums hide the 4 cycles of two FMA units.
  static constexpr int kRows = 3;
  static constexpr int kCols = 4;
  static constexpr int kCols1 = 8;

  static Reg zero() { return _mm256_setzero_ps(); }
  static Reg load_f32(const float* from) { return _mm256_loadu_ps(from); }
  static Reg load_bf16(const std::uint16_t* from) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static Reg load_f16(const std::uint16_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Reg multiply_add(Reg x, Reg y, Reg z) { return _mm256_fmadd_ps(x, y, z); }
  static float sum(Reg x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
};

}  // namespace

void dense_avx2(const DenseTile& tile, DType a, DType w) {
  dense_run<Vector8>(tile, a, w);
}

}  // namespace conclave::cpu
