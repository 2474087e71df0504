// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The permuting copy of pack_rows.hpp, a block a row.
#include "cuda/elements.cuh"
#include "cuda/launch.hpp"
#include "cuda/ptx/control.cuh"
#include "experts/activation.hpp"
#include "experts/cuda/pack_rows.hpp"

namespace conclave::experts::cuda {
namespace {

using conclave::cuda::load_element;
using conclave::cuda::store_element;

constexpr int kThreads = 256;

/// The source row of packed row `row`, or -1 where the packed row is padding.
__device__ std::int64_t source_row(const PackRows& w, std::int64_t row) {
  if (!w.gated) return row < w.from_rows ? row : -1;
  const std::int64_t i = row / 16 * 8 + row % 8;
  if (i >= w.from_rows) return -1;
  const W13Rows source = w13_rows_of(w.layout, true, i, w.from_rows);
  return row % 16 < 8 ? source.gate : source.up;
}

__global__ void __launch_bounds__(kThreads) pack_rows_kernel(PackRows w) {
  conclave::cuda::ptx::wait_for_predecessor();
  const std::int64_t row = blockIdx.x;
  const std::int64_t source = source_row(w, row);
  for (std::int64_t c = threadIdx.x; c < w.columns; c += kThreads) {
    const bool padding = source < 0 || c >= w.from_columns;
    const float value = padding ? 0.0F : load_element(w.from, w.from_dtype, source * w.from_stride + c);
    store_element(w.to, w.to_dtype, row * w.columns + c, value);
  }
}

}  // namespace

void pack_rows(const PackRows& work, cudaStream_t stream) {
  if (work.rows == 0 || work.columns == 0) return;
  conclave::cuda::launch("pack_rows", pack_rows_kernel,
                         {.grid = {static_cast<unsigned>(work.rows)}, .block = {kThreads}, .stream = stream}, work);
}

}  // namespace conclave::experts::cuda
