// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Tiled copies by the copy engine (TMA, sm_90): a box of a tensor described by a CUtensorMap -> shared memory,
// completing on an mbarrier. Elements outside of the tensor arrive as zeros.
#pragma once

#include <cuda.h>

#include "cuda/ptx/mbarrier.cuh"

namespace conclave::cuda::ptx {

/// L2 policies as the copy instructions encode them: weights of a call are read once, activations again and again.
inline constexpr std::uint64_t kEvictNormal = 0x1000000000000000;
inline constexpr std::uint64_t kEvictFirst = 0x12F0000000000000;
inline constexpr std::uint64_t kEvictLast = 0x14F0000000000000;

__device__ inline void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<std::uint64_t>(map)) : "memory");
}

__device__ inline void tma_load_2d(void* to, const CUtensorMap* map, std::uint64_t* barrier, std::int32_t x,
                                   std::int32_t y, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(to)),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(shared_address(barrier)), "r"(x), "r"(y), "l"(policy)
      : "memory");
}

__device__ inline void tma_load_3d(void* to, const CUtensorMap* map, std::uint64_t* barrier, std::int32_t x,
                                   std::int32_t y, std::int32_t z, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(to)),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "l"(policy)
      : "memory");
}

/// As tma_load_3d, delivered to every block of the cluster in `blocks` at the same offsets, barrier included.
__device__ inline void tma_load_3d_multicast(void* to, const CUtensorMap* map, std::uint64_t* barrier, std::int32_t x,
                                             std::int32_t y, std::int32_t z, std::uint16_t blocks,
                                             std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(shared_address(to)),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "h"(blocks),
      "l"(policy)
      : "memory");
}

}  // namespace conclave::cuda::ptx
