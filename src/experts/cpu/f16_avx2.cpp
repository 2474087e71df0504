// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// f16 weights and activations, products in f32: weights are converted as they are loaded (vcvtph2ps).
#include "experts/cpu/simd_avx2.hpp"
#include "experts/cpu/vector_part.hpp"

namespace conclave::experts::grouped {
namespace {

struct F16Avx2 : Avx2 {
  using Source = std::uint16_t;
  using Weight = std::uint16_t;
  using Input = float;
  static constexpr int kWeightGroup = 1;
  static constexpr int kSteps = 1;
  static constexpr std::int64_t kBlock = 512;

  static Vec input(const Input* x) { return broadcast(x); }
  template <int>
  static Vec weight(const Weight* w) {
    return load_f16(w);
  }
  static Vec product(Vec in, Vec w, Vec sum) { return multiply_add(in, w, sum); }

  static Vec load_source(const Source* p) { return load_f16(p); }
  static void store_source(Source* p, Vec v) { store_f16(p, v); }
  static void store_input(Input* p, Vec v) { store(p, v); }
};

}  // namespace

extern constinit const Engine kF16Avx2 = make_engine<VectorPart<F16Avx2>>(
    {"experts/cpu_f16_avx2", "AVX2, f32 products of f16", &CpuFeatures::avx2, "AVX2 with FMA and F16C", DType::f16});

}  // namespace conclave::experts::grouped
