// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// f32 by FMA: tiles of 12 rows x 32 columns.
#include "experts/cpu/simd_avx512.hpp"
#include "experts/cpu/vector_part.hpp"

namespace conclave::experts::grouped {
namespace {

struct F32Avx512 : Avx512 {
  using Source = float;
  using Weight = float;
  using Input = float;
  static constexpr int kWeightGroup = 1;
  static constexpr int kSteps = 1;
  static constexpr std::int64_t kBlock = 256;

  static Vec input(const Input* x) { return broadcast(x); }
  template <int>
  static Vec weight(const Weight* w) {
    return load(w);
  }
  static Vec product(Vec in, Vec w, Vec sum) { return multiply_add(in, w, sum); }

  static Vec load_source(const Source* p) { return load(p); }
  static void store_source(Source* p, Vec v) { store(p, v); }
  static void store_input(Input* p, Vec v) { store(p, v); }
};

}  // namespace

extern constinit const Engine kF32Avx512 = make_engine<VectorPart<F32Avx512>>(
    {"experts/cpu_f32_avx512", "AVX-512, f32 products", &CpuFeatures::avx512, "AVX-512 F, BW, VL and DQ", DType::f32});

}  // namespace conclave::experts::grouped
