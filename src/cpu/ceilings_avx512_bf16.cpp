// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Out: bf16 products of pairs in 512-bit registers (vdpbf16ps).
#include <immintrin.h>

#include "cpu/ceilings.hpp"
#include "cpu/ceilings_loops.hpp"
#include "cpu/variants.hpp"

namespace conclave::cpu {
void multiply_add_bf16_avx512_bf16(std::int64_t iterations) {
  // 0x3C00 is 2^-7 in bf16: the sums grow slowly and stay finite.
  const auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3C00));
  flops_loop<kFlopsSums>(iterations, _mm512_setzero_ps(), [=](__m512 sum) { return _mm512_dpbf16_ps(sum, x, x); });
}

}  // namespace conclave::cpu
