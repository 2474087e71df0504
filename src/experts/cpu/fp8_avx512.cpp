// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Fp8Format (e4m3 codes) decoded in registers, products in f32.
#include "experts/cpu/codes_avx512.hpp"
#include "experts/cpu/scaled_part.hpp"

namespace conclave::experts::grouped {

extern constinit const Engine kFp8Avx512 =
    make_scaled_engine<E4m3Avx512<kFp8Pairs>>({"experts/cpu_fp8_avx512", "AVX-512, f32 products of e4m3 codes",
                                               &CpuFeatures::avx512, "AVX-512 F, BW, VL and DQ"});

}  // namespace conclave::experts::grouped
