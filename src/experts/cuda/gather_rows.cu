// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The copy of gather_rows.hpp: a warp a row, 16 bytes a lane, four loads under way.
#include "cuda/launch.hpp"
#include "cuda/ptx/control.cuh"
#include "experts/cuda/gather_rows.hpp"

namespace conclave::experts::cuda {
namespace {

namespace ptx = conclave::cuda::ptx;

constexpr int kThreads = 256;
constexpr int kInFlight = 4;

__global__ void __launch_bounds__(kThreads) gather_rows_kernel(GatherRows w) {
  ptx::wait_for_predecessor();
  ptx::launch_dependents();
  const std::int32_t count = *w.num_tiles;
  if (count == 0) return;
  const TokenTile last = w.tiles[count - 1];
  const std::int32_t rows = last.first_row + last.rows;
  const auto chunks = static_cast<std::int32_t>(w.columns / 8);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int32_t warps = static_cast<std::int32_t>(gridDim.x) * (kThreads / 32);
  for (std::int32_t row = static_cast<std::int32_t>(blockIdx.x * (kThreads / 32) + threadIdx.x / 32); row < rows;
       row += warps) {
    const auto* from =
        reinterpret_cast<const uint4*>(static_cast<const char*>(w.from) + 2 * (w.row_tokens[row] * w.from_stride));
    auto* to = reinterpret_cast<uint4*>(static_cast<char*>(w.to) + 2 * (row * w.columns));
    for (std::int32_t first = lane; first < chunks; first += 32 * kInFlight) {
      uint4 loaded[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i)
        if (first + 32 * i < chunks) loaded[i] = __ldg(from + first + 32 * i);
#pragma unroll
      for (int i = 0; i < kInFlight; ++i)
        if (first + 32 * i < chunks) to[first + 32 * i] = loaded[i];
    }
  }
}

}  // namespace

void gather_rows(const GatherRows& work, int max_blocks, cudaStream_t stream) {
  conclave::cuda::launch("gather_rows", gather_rows_kernel,
                         {.grid = {static_cast<unsigned>(8 * max_blocks)}, .block = {kThreads}, .stream = stream},
                         work);
}

}  // namespace conclave::experts::cuda
