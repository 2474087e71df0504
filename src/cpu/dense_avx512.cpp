// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a tile of a dense product. Out: its dot products, sixteen lanes of AVX-512.
#include <immintrin.h>

#include "cpu/dense_tile.hpp"
#include "cpu/variants.hpp"

namespace conclave::cpu {
namespace {

struct Vector16 {
  using Reg = __m512;
  static constexpr int kLanes = 16;
  // 24 sums, 4 elements of a and 1 of w fit the 32 registers, and 10 loads feed 24 FMA.
  static constexpr int kRows = 4;
  static constexpr int kCols = 6;
  static constexpr int kCols1 = 8;

  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg load_f32(const float* from) { return _mm512_loadu_ps(from); }
  static Reg load_bf16(const std::uint16_t* from) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static Reg load_f16(const std::uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static Reg multiply_add(Reg x, Reg y, Reg z) { return _mm512_fmadd_ps(x, y, z); }
  static float sum(Reg x) { return _mm512_reduce_add_ps(x); }
};

}  // namespace

void dense_avx512(const DenseTile& tile, DType a, DType w) {
  dense_run<Vector16>(tile, a, w);
}

}  // namespace conclave::cpu
