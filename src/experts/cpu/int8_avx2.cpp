// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Int8Format (int8 codes) decoded in registers, products in f32.
#include "experts/cpu/codes_avx2.hpp"
#include "experts/cpu/scaled_part.hpp"

namespace conclave::experts::grouped {

extern constinit const Engine kInt8Avx2 = make_scaled_engine<Int8Avx2<kInt8Format>>(
    {"experts/cpu_int8_avx2", "AVX2, f32 products of int8 codes", &CpuFeatures::avx2, "AVX2 with FMA and F16C"});

}  // namespace conclave::experts::grouped
