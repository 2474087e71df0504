// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Out: products and reads in 512-bit registers.
#include <immintrin.h>

#include "cpu/ceilings.hpp"
#include "cpu/ceilings_loops.hpp"
#include "cpu/variants.hpp"

namespace conclave::cpu {
void multiply_add_f32_avx512(std::int64_t iterations) {
  const __m512 x = _mm512_set1_ps(0.999F), y = _mm512_set1_ps(0.001F);
  flops_loop<kFlopsSums>(iterations, y, [=](__m512 sum) { return _mm512_fmadd_ps(sum, x, y); });
}

void read_avx512(const std::byte* from, std::int64_t bytes, int streams) {
  read_loop(from, bytes, streams, [](const std::byte* p) {
    const __m512i line = _mm512_load_si512(p);
    asm volatile("" : : "v"(line));
  });
}

}  // namespace conclave::cpu
