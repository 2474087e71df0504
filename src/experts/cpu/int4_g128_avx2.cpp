// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Int4Group128Format (4-bit codes) times rows in three digits, exact sums of a group.
#include "experts/cpu/digit_part.hpp"
#include "experts/cpu/digits_avx2.hpp"

namespace conclave::experts::grouped {

extern constinit const Engine kInt4G128Avx2 = make_digit_engine<Int4DigitsAvx2<kInt4Group128Format>>(
    {"experts/cpu_int4_g128_avx2", "AVX2, 21-bit fixed-point products of 4-bit codes", &CpuFeatures::avx2,
     "AVX2 with FMA and F16C"});

}  // namespace conclave::experts::grouped
