// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Elements of f32, bf16 and f16 by their tag: what small kernels read and write, whose time is not in the conversion.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "conclave/dtype.hpp"

namespace conclave::cuda {

__device__ inline float load_element(const void* data, DType dtype, std::int64_t at) {
  if (dtype == DType::f32) return static_cast<const float*>(data)[at];
  if (dtype == DType::bf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
  return __half2float(static_cast<const __half*>(data)[at]);
}

/// Rounds to nearest, ties to even.
__device__ inline void store_element(void* data, DType dtype, std::int64_t at, float value) {
  if (dtype == DType::f32)
    static_cast<float*>(data)[at] = value;
  else if (dtype == DType::bf16)
    static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16_rn(value);
  else
    static_cast<__half*>(data)[at] = __float2half_rn(value);
}

}  // namespace conclave::cuda
