// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// f32 by FMA: tiles of 6 rows x 16 columns.
#include "experts/cpu/simd_avx2.hpp"
#include "experts/cpu/vector_part.hpp"

namespace conclave::experts::grouped {
namespace {

struct F32Avx2 : Avx2 {
  using Source = float;
  using Weight = float;
  using Input = float;
  static constexpr int kWeightGroup = 1;
  static constexpr int kSteps = 1;
  /// 32 KiB of a panel come from L2, of which 64 bytes for 6 cycles of products are a third of what it gives. 16 KiB
  /// would stay in L1, but the sums would move to memory and back twice as often: 1 to 3 % slower.
  static constexpr std::int64_t kBlock = 512;

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

extern constinit const Engine kF32Avx2 = make_engine<VectorPart<F32Avx2>>(
    {"experts/cpu_f32_avx2", "AVX2, f32 products", &CpuFeatures::avx2, "AVX2 with FMA and F16C", DType::f32});

}  // namespace conclave::experts::grouped
