// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// bf16 weights and activations, products in f32: a bf16 is the upper half of a float, so that a pair of weights becomes
// two registers by one shift and one mask. Nothing is rounded between the products.
#include "experts/cpu/simd_avx512.hpp"
#include "experts/cpu/vector_part.hpp"

namespace conclave::experts::grouped {
namespace {

struct Bf16Avx512 : Avx512 {
  using Source = std::uint16_t;
  using Weight = std::uint16_t;
  using Input = float;
  static constexpr int kWeightGroup = 2;
  static constexpr int kSteps = 2;
  static constexpr std::int64_t kBlock = 512;

  static Vec input(const Input* x) { return broadcast(x); }
  template <int Step>
  static Vec weight(const Weight* w) {
    return Step == 0 ? even_of_pairs(w) : odd_of_pairs(w);
  }
  static Vec product(Vec in, Vec w, Vec sum) { return multiply_add(in, w, sum); }

  static Vec load_source(const Source* p) { return load_bf16(p); }
  static void store_source(Source* p, Vec v) { store_bf16(p, v); }
  static void store_input(Input* p, Vec v) { store(p, v); }
};

}  // namespace

extern constinit const Engine kBf16Avx512 =
    make_engine<VectorPart<Bf16Avx512>>({"experts/cpu_bf16_avx512", "AVX-512, f32 products of bf16",
                                         &CpuFeatures::avx512, "AVX-512 F, BW, VL and DQ", DType::bf16});

}  // namespace conclave::experts::grouped
