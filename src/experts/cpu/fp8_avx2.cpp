// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Fp8Format (e4m3 codes) decoded in registers, products in f32.
#include "experts/cpu/codes_avx2.hpp"
#include "experts/cpu/scaled_part.hpp"

namespace conclave::experts::grouped {

extern constinit const Engine kFp8Avx2 = make_scaled_engine<E4m3Avx2<kFp8Format>>(
    {"experts/cpu_fp8_avx2", "AVX2, f32 products of e4m3 codes", &CpuFeatures::avx2, "AVX2 with FMA and F16C"});

}  // namespace conclave::experts::grouped
