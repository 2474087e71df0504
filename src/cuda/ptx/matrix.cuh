// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Matrices of 8 x 8 16-bit elements between the registers of a warp and shared memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace conclave::cuda::ptx {

/// Stores four matrices transposed. Register i of lane l holds elements (l / 4, 2 (l % 4)) and the next column of
/// matrix i; lane 8 i + r gives the address where column r of matrix i goes, as 8 elements of 16 bytes in all.
__device__ inline void stmatrix_x4_transposed(std::uint32_t to_shared, const std::uint32_t (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(to_shared),
               "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

/// As above without transposing: lane 8 i + r gives the address where row r of matrix i goes.
__device__ inline void stmatrix_x4(std::uint32_t to_shared, const std::uint32_t (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(to_shared), "r"(v[0]),
               "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

/// Two f32 as one register of two rounded values, the first in the low half.
__device__ inline std::uint32_t pack2(float low, float high, __nv_bfloat16) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}
__device__ inline std::uint32_t pack2(float low, float high, __half) {
  const __half2 both = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}

/// The inverse: the two halves of a register as f32.
__device__ inline float2 unpack2(std::uint32_t both, __nv_bfloat16) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&both));
}
__device__ inline float2 unpack2(std::uint32_t both, __half) {
  return __half22float2(*reinterpret_cast<const __half2*>(&both));
}

}  // namespace conclave::cuda::ptx
