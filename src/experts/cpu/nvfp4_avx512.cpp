// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Nvfp4Format (e2m1 codes, e4m3 scales) decoded in registers, products in f32.
#include "experts/cpu/codes_avx512.hpp"
#include "experts/cpu/scaled_part.hpp"

namespace conclave::experts::grouped {

extern constinit const Engine kNvfp4Avx512 = make_scaled_engine<E2m1Avx512<kNvfp4Octets>>(
    {"experts/cpu_nvfp4_avx512", "AVX-512, f32 products of e2m1 codes, e4m3 scales", &CpuFeatures::avx512,
     "AVX-512 F, BW, VL and DQ"});

}  // namespace conclave::experts::grouped
