// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Out: products and reads in 256-bit registers.
#include <immintrin.h>

#include "cpu/ceilings.hpp"
#include "cpu/ceilings_loops.hpp"
#include "cpu/variants.hpp"

namespace conclave::cpu {
void multiply_add_f32_avx2(std::int64_t iterations) {
  const __m256 x = _mm256_set1_ps(0.999F), y = _mm256_set1_ps(0.001F);
  flops_loop<kFlopsSums>(iterations, y, [=](__m256 sum) { return _mm256_fmadd_ps(sum, x, y); });
}

void read_avx2(const std::byte* from, std::int64_t bytes, int streams) {
  read_loop(from, bytes, streams, [](const std::byte* p) {
    const auto* q = reinterpret_cast<const __m256i*>(p);
    const __m256i low = _mm256_load_si256(q), high = _mm256_load_si256(q + 1);
    asm volatile("" : : "x"(low), "x"(high));
  });
}

}  // namespace conclave::cpu
