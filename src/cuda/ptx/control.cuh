// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Control between warps, blocks and kernels: named barriers, register budgets, clusters, dependent launch.
#pragma once

#include <cstdint>

namespace conclave::cuda::ptx {

/// A barrier of `threads` threads of the block. Identifier 0 is __syncthreads.
__device__ inline void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Counts this thread at the barrier without waiting there.
__device__ inline void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Takes registers up to, or gives them back down to, `Count` a thread: all four warps of a warpgroup must ask.
template <int Count>
__device__ inline void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}
template <int Count>
__device__ inline void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}

/// Programmatic dependent launch: the next kernel of the stream may start its blocks when every block of this one has
/// said so, and waits here until this one (and so everything before it) is complete and its writes are visible.
/// Every block must wait once before it ends, or a kernel could end before its predecessor does.
/// GPUs before sm_90 start kernels one after the other, and there is nothing to say.
__device__ inline void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// Orders this thread's ordinary view of shared memory before reads by the tensor cores and the copy engine.
__device__ inline void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace conclave::cuda::ptx
