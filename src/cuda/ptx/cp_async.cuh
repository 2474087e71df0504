// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Copies of 16 bytes by single threads (cp.async, sm_80): global -> shared memory without registers. What a gather of
// rows uses, since the copy engine of sm_90 cannot gather.
#pragma once

#include "cuda/ptx/mbarrier.cuh"

namespace conclave::cuda::ptx {

/// Copies `bytes` (0 to 16) from global memory and fills the rest of 16 with zeros; 0 reads nothing. Around L1.
__device__ inline void cp_async_16(std::uint32_t to_shared, const void* from, std::uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to_shared), "l"(from), "r"(bytes) : "memory");
}

/// One arrival at `barrier` once every earlier cp.async of this thread has landed. The barrier counts it as one of its
/// initial arrivals.
__device__ inline void cp_async_arrive(std::uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ inline void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most `Pending` groups of this thread are under way.
template <int Pending>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

}  // namespace conclave::cuda::ptx
