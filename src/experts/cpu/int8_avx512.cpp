// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Int8Format (int8 codes) decoded in registers, products in f32.
#include "experts/cpu/codes_avx512.hpp"
#include "experts/cpu/scaled_part.hpp"

namespace conclave::experts::grouped {

extern constinit const Engine kInt8Avx512 =
    make_scaled_engine<Int8Avx512<kInt8Format>>({"experts/cpu_int8_avx512", "AVX-512, f32 products of int8 codes",
                                                 &CpuFeatures::avx512, "AVX-512 F, BW, VL and DQ"});

}  // namespace conclave::experts::grouped
