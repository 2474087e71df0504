// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Int4Group32Format (4-bit codes) decoded in registers, products in f32.
#include "experts/cpu/codes_avx512.hpp"
#include "experts/cpu/scaled_part.hpp"

namespace conclave::experts::grouped {

extern constinit const Engine kInt4G32Avx512 = make_scaled_engine<Int4Avx512<kInt4Group32Octets>>(
    {"experts/cpu_int4_g32_avx512", "AVX-512, f32 products of 4-bit codes", &CpuFeatures::avx512,
     "AVX-512 F, BW, VL and DQ"});

}  // namespace conclave::experts::grouped
