// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Mxfp4Format (e2m1 codes, e8m0 scales) decoded in registers, products in f32.
#include "experts/cpu/codes_avx2.hpp"
#include "experts/cpu/scaled_part.hpp"

namespace conclave::experts::grouped {

extern constinit const Engine kMxfp4Avx2 = make_scaled_engine<E2m1Avx2<kMxfp4Format>>(
    {"experts/cpu_mxfp4_avx2", "AVX2, f32 products of e2m1 codes, e8m0 scales", &CpuFeatures::avx2,
     "AVX2 with FMA and F16C"});

}  // namespace conclave::experts::grouped
