// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Mxfp8Format (e4m3 codes, e8m0 scales) decoded in registers, products in f32.
#include "experts/cpu/codes_avx512.hpp"
#include "experts/cpu/scaled_part.hpp"

namespace conclave::experts::grouped {

extern constinit const Engine kMxfp8Avx512 = make_scaled_engine<E4m3Avx512<kMxfp8Pairs>>(
    {"experts/cpu_mxfp8_avx512", "AVX-512, f32 products of e4m3 codes, e8m0 scales", &CpuFeatures::avx512,
     "AVX-512 F, BW, VL and DQ"});

}  // namespace conclave::experts::grouped
