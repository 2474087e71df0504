// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Nvfp4Format (e2m1 codes, e4m3 scales) times rows in three digits, exact sums of a group.
#include "experts/cpu/digit_part.hpp"
#include "experts/cpu/digits_avx2.hpp"

namespace conclave::experts::grouped {

extern constinit const Engine kNvfp4Avx2 = make_digit_engine<E2m1DigitsAvx2<kNvfp4Format>>(
    {"experts/cpu_nvfp4_avx2", "AVX2, 21-bit fixed-point products of e2m1 codes, e4m3 scales", &CpuFeatures::avx2,
     "AVX2 with FMA and F16C"});

}  // namespace conclave::experts::grouped
