// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Int4Group64Format (4-bit codes) decoded in registers, products in f32.
#include "experts/cpu/codes_avx2.hpp"
#include "experts/cpu/scaled_part.hpp"

namespace conclave::experts::grouped {

extern constinit const Engine kInt4G64Avx2 = make_scaled_engine<Int4Avx2<kInt4Group64Format>>(
    {"experts/cpu_int4_g64_avx2", "AVX2, f32 products of 4-bit codes", &CpuFeatures::avx2, "AVX2 with FMA and F16C"});

}  // namespace conclave::experts::grouped
