// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Out: the registry entries of the x86-64 engines, one line each. Not in the engines' own files: those are compiled for
// instruction sets that the CPU may lack, and entries are made on every CPU.
#include "experts/cpu/engines_x86.hpp"
#include "experts/cpu/grouped_experts.hpp"

namespace conclave::parts {

// Declared where they are called, in the generated list.
// clang-format off
#define CONCLAVE_GROUPED_EXPERTS(maker, engine) \
  Entry<Experts> maker();                       \
  Entry<Experts> maker() { return experts::grouped::entry_of(experts::grouped::engine); }

CONCLAVE_GROUPED_EXPERTS(experts_cpu_bf16_amx, kBf16Amx)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_bf16_avx512_bf16, kBf16Avx512Bf16)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_bf16_avx512, kBf16Avx512)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_bf16_avx2, kBf16Avx2)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_f16_avx512, kF16Avx512)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_f16_avx2, kF16Avx2)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_f32_avx512, kF32Avx512)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_f32_avx2, kF32Avx2)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_int8_int8_avx512_vnni, kInt8Int8Avx512Vnni)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_int8_int8_avx2, kInt8Int8Avx2)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_int8_avx512, kInt8Avx512)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_int8_avx2, kInt8Avx2)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_fp8_avx512, kFp8Avx512)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_fp8_avx2, kFp8Avx2)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_mxfp8_avx512, kMxfp8Avx512)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_mxfp8_avx2, kMxfp8Avx2)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_int4_g128_avx512, kInt4G128Avx512)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_int4_g128_avx2, kInt4G128Avx2)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_int4_g64_avx512, kInt4G64Avx512)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_int4_g64_avx2, kInt4G64Avx2)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_int4_g32_avx512, kInt4G32Avx512)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_int4_g32_avx2, kInt4G32Avx2)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_mxfp4_avx512, kMxfp4Avx512)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_mxfp4_avx2, kMxfp4Avx2)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_nvfp4_avx512, kNvfp4Avx512)
CONCLAVE_GROUPED_EXPERTS(experts_cpu_nvfp4_avx2, kNvfp4Avx2)
// clang-format on

}  // namespace conclave::parts
