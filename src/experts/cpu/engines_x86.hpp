// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The engines for x86-64, each defined in the file of its name. Constants, not functions: to look at one executes
// nothing that was compiled for its instruction set.
#pragma once

#include "experts/cpu/engine.hpp"

namespace conclave::experts::grouped {

extern const Engine kBf16Amx;
extern const Engine kBf16Avx512Bf16;
extern const Engine kBf16Avx512;
extern const Engine kBf16Avx2;
extern const Engine kF16Avx512;
extern const Engine kF16Avx2;
extern const Engine kF32Avx512;
extern const Engine kF32Avx2;
extern const Engine kInt8Int8Avx512Vnni;
extern const Engine kInt8Int8Avx2;
extern const Engine kInt8Avx512;
extern const Engine kInt8Avx2;
extern const Engine kFp8Avx512;
extern const Engine kFp8Avx2;
extern const Engine kMxfp8Avx512;
extern const Engine kMxfp8Avx2;
extern const Engine kInt4G128Avx512;
extern const Engine kInt4G128Avx2;
extern const Engine kInt4G64Avx512;
extern const Engine kInt4G64Avx2;
extern const Engine kInt4G32Avx512;
extern const Engine kInt4G32Avx2;
extern const Engine kMxfp4Avx512;
extern const Engine kMxfp4Avx2;
extern const Engine kNvfp4Avx512;
extern const Engine kNvfp4Avx2;

}  // namespace conclave::experts::grouped
