// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Mxfp4Format (e2m1 codes, e8m0 scales) decoded in registers, products in f32.
#include "experts/cpu/group_sum_kernel.hpp"
#include "experts/cpu/quads_avx2.hpp"
#include "experts/cpu/scaled_part.hpp"

namespace conclave::experts::grouped {

extern constinit const Engine kMxfp4Avx2 =
    make_scaled_engine<E2m1Quads<kMxfp4Quads>, GroupSumKernel<E2m1Quads<kMxfp4Quads>>>(
        {"experts/cpu_mxfp4_avx2", "AVX2, f32 products of e2m1 codes, e8m0 scales", &CpuFeatures::avx2,
         "AVX2 with FMA and F16C"});

}  // namespace conclave::experts::grouped
