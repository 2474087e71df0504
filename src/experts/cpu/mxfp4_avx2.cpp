// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Mxfp4Format (e2m1 codes, e8m0 scales) times rows in three digits, exact sums of a group.
#include "experts/cpu/digit_part.hpp"
#include "experts/cpu/digits_avx2.hpp"

namespace conclave::experts::grouped {

extern constinit const Engine kMxfp4Avx2 = make_digit_engine<E2m1DigitsAvx2<kMxfp4Format>>(
    {"experts/cpu_mxfp4_avx2", "AVX2, 21-bit fixed-point products of e2m1 codes, e8m0 scales", &CpuFeatures::avx2,
     "AVX2 with FMA and F16C"});

}  // namespace conclave::experts::grouped
