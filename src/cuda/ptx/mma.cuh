// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The warp's matrix product (mma.sync, sm_80): D[16, 8] f32 += A[16, 16] . B[8, 16], both operands of 16-bit elements
// with K contiguous, and the load of operands from shared memory.
// Lane l holds, in d[0] and d[1], row l / 4 of D at columns 2 (l % 4) and the next; in d[2] and d[3], the row 8 further
// down.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace conclave::cuda::ptx {

/// Loads four matrices of 8 x 8 16-bit elements. Lane 8 i + r gives the address of row r of matrix i, 16 bytes;
/// register i of lane l receives elements (l / 4, 2 (l % 4)) and the next column of matrix i.
__device__ inline void ldmatrix_x4(std::uint32_t (&v)[4], std::uint32_t from_shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(from_shared)
               : "memory");
}

/// `a`: the matrices (rows 0-7, K 0-7), (rows 8-15, K 0-7), (rows 0-7, K 8-15), (rows 8-15, K 8-15).
/// `b0`, `b1`: the matrices (rows 0-7, K 0-7) and (rows 0-7, K 8-15). Not volatile: it touches registers alone, so the
/// compiler may place it between loads as it likes.
__device__ inline void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                                   __nv_bfloat16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                                   __half) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace conclave::cuda::ptx
