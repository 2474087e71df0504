// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The copy of pad_rows.hpp: an element a thread, since nothing is known of the source's alignment.
#include "cuda/launch.hpp"
#include "cuda/ptx/control.cuh"
#include "experts/cuda/pad_rows.hpp"

namespace conclave::experts::cuda {
namespace {

namespace ptx = conclave::cuda::ptx;

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) pad_rows_kernel(PadRows w) {
  ptx::wait_for_predecessor();
  ptx::launch_dependents();
  const auto* from = static_cast<const std::uint16_t*>(w.from) + blockIdx.x * w.from_stride;
  auto* to = static_cast<std::uint16_t*>(w.to) + blockIdx.x * w.width;
  for (std::int64_t c = threadIdx.x; c < w.width; c += kThreads) to[c] = c < w.columns ? from[c] : std::uint16_t{0};
}

}  // namespace

void pad_rows(const PadRows& work, cudaStream_t stream) {
  conclave::cuda::launch("pad_rows", pad_rows_kernel,
                         {.grid = {static_cast<unsigned>(work.rows)}, .block = {kThreads}, .stream = stream}, work);
}

}  // namespace conclave::experts::cuda
