// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// bf16 by vdpbf16ps: each lane adds the products of a pair of k to an f32 sum.
#include "experts/cpu/simd_avx512.hpp"
#include "experts/cpu/vector_part.hpp"

namespace conclave::experts::grouped {
namespace {

struct Bf16Avx512Bf16 : Avx512 {
  using Source = std::uint16_t;
  using Weight = std::uint16_t;
  using Input = std::uint16_t;
  static constexpr int kWeightGroup = 2;
  static constexpr int kSteps = 1;
  static constexpr std::int64_t kBlock = 512;

  /// A pair of k in every lane. Through memcpy: the pair is two elements, not one integer.
  static Vec input(const Input* x) {
    std::int32_t pair;
    __builtin_memcpy(&pair, x, sizeof(pair));
    return _mm512_castsi512_ps(_mm512_set1_epi32(pair));
  }
  template <int>
  static Vec weight(const Weight* w) {
    return _mm512_castsi512_ps(_mm512_loadu_si512(w));
  }
  static Vec product(Vec in, Vec w, Vec sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(in), reinterpret_cast<__m512bh>(w));
  }

  static Vec load_source(const Source* p) { return load_bf16(p); }
  static void store_source(Source* p, Vec v) { store_bf16(p, v); }
  static void store_input(Input* p, Vec v) { store_bf16(p, v); }
};

}  // namespace

extern constinit const Engine kBf16Avx512Bf16 = make_engine<VectorPart<Bf16Avx512Bf16>>(
    {"experts/cpu_bf16_avx512_bf16", "AVX512_BF16, bf16 products", &CpuFeatures::avx512_bf16, "AVX512_BF16",
     DType::bf16, &CpuFeatures::slow_avx512_bf16});

}  // namespace conclave::experts::grouped
