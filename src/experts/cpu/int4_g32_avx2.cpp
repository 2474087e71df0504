// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Int4Group32Format (4-bit codes) times rows in three digits, exact sums of a group.
#include "experts/cpu/digit_part.hpp"
#include "experts/cpu/digits_avx2.hpp"

namespace conclave::experts::grouped {

extern constinit const Engine kInt4G32Avx2 = make_digit_engine<Int4DigitsAvx2<kInt4Group32Format>>(
    {"experts/cpu_int4_g32_avx2", "AVX2, 21-bit fixed-point products of 4-bit codes", &CpuFeatures::avx2,
     "AVX2 with FMA and F16C"});

}  // namespace conclave::experts::grouped
