// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Mxfp8Format (e4m3 codes, e8m0 scales) decoded in registers, products in f32.
#include "experts/cpu/codes_avx2.hpp"
#include "experts/cpu/scaled_part.hpp"

namespace conclave::experts::grouped {

extern constinit const Engine kMxfp8Avx2 = make_scaled_engine<E4m3Avx2<kMxfp8Format>>(
    {"experts/cpu_mxfp8_avx2", "AVX2, f32 products of e4m3 codes, e8m0 scales", &CpuFeatures::avx2,
     "AVX2 with FMA and F16C"});

}  // namespace conclave::experts::grouped
