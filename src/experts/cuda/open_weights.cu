// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// open_weights.hpp: an element a thread.
#include "cuda/launch.hpp"
#include "cuda/ptx/control.cuh"
#include "experts/cuda/open_weights.hpp"

namespace conclave::experts::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) open_weights_kernel(const float* from, float* to, std::int64_t count) {
  conclave::cuda::ptx::wait_for_predecessor();
  conclave::cuda::ptx::launch_dependents();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) to[i] = from == nullptr ? 1.0F : from[i];
}

}  // namespace

void open_weights(const float* from, float* to, std::int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  conclave::cuda::launch(
      "open_weights", open_weights_kernel,
      {.grid = {static_cast<unsigned>((count + kThreads - 1) / kThreads)}, .block = {kThreads}, .stream = stream}, from,
      to, count);
}

}  // namespace conclave::experts::cuda
