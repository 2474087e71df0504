// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// reference_kernels.hpp. Dot products run over K in an order that depends on K alone.
#include "cuda/elements.cuh"
#include "cuda/launch.hpp"
#include "cuda/ptx/control.cuh"
#include "experts/cuda/reference_kernels.hpp"

namespace conclave::experts::cuda {
namespace {

namespace ptx = conclave::cuda::ptx;

using conclave::cuda::load_element;
using conclave::cuda::store_element;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

__device__ std::int32_t local_expert(const PlainProducts& w, std::int64_t slot) {
  if (w.counts != nullptr) {
    const auto expert = static_cast<std::int32_t>(slot / w.max_rows);
    return slot % w.max_rows < w.counts[expert] ? expert : -1;
  }
  const std::int32_t id = w.topk_ids[slot];
  if (id < 0 || id >= w.num_ids) return -1;
  const std::int32_t local = w.expert_map == nullptr ? id : w.expert_map[id];
  return local >= 0 && local < w.num_local_experts ? local : -1;
}

/// Lanes take every 32nd element, then fold in a fixed tree.
__device__ float dot(const void* a, DType dtype, std::int64_t first, const float* b, std::int64_t length) {
  float sum = 0;
  for (std::int64_t i = threadIdx.x % 32; i < length; i += 32)
    sum = __fmaf_rn(load_element(a, dtype, first + i), b[i], sum);
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0U, sum, offset);
  return sum;
}

/// Column of this warp, and the slot of this block.
__device__ std::int64_t column_of_warp() {
  return static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
}

__global__ void __launch_bounds__(kThreads) first_product(PlainProducts w) {
  ptx::wait_for_predecessor();
  const std::int64_t i = column_of_warp();
  const std::int64_t slot = blockIdx.y + static_cast<std::int64_t>(blockIdx.z) * gridDim.y;
  if (i >= w.intermediate_size || slot >= w.num_tokens * w.top_k) return;
  const std::int32_t expert = local_expert(w, slot);
  if (expert < 0) return;
  const std::int64_t rows = w13_rows(w.activation.gated, w.intermediate_size);
  const W13Rows at = w13_rows_of(w.layout, w.activation.gated, i, w.intermediate_size);
  const auto product = [&](std::int64_t row) {
    const float sum = dot(w.hidden_states, w.dtype, slot / w.top_k * w.token_stride,
                          w.w13 + (expert * rows + row) * w.hidden_size, w.hidden_size);
    return w.w13_bias == nullptr ? sum : sum + w.w13_bias[expert * rows + row];
  };
  const float gate = product(at.gate);
  const float value = w.activation.gated ? activate(w.activation, gate, product(at.up)) : activate(w.activation, gate);
  if (threadIdx.x % 32 == 0) w.inner[slot * w.intermediate_size + i] = value;
}

__global__ void __launch_bounds__(kThreads) second_product(PlainProducts w) {
  ptx::wait_for_predecessor();
  const std::int64_t h = column_of_warp();
  const std::int64_t slot = blockIdx.y + static_cast<std::int64_t>(blockIdx.z) * gridDim.y;
  if (h >= w.hidden_size || slot >= w.num_tokens * w.top_k) return;
  const std::int32_t expert = local_expert(w, slot);
  if (expert < 0) return;
  float sum = dot(w.inner, DType::f32, slot * w.intermediate_size,
                  w.w2 + (expert * w.hidden_size + h) * w.intermediate_size, w.intermediate_size);
  if (w.w2_bias != nullptr) sum += w.w2_bias[expert * w.hidden_size + h];
  if (threadIdx.x % 32 == 0) w.rows[slot * w.hidden_size + h] = sum;
}

__global__ void __launch_bounds__(kThreads) weighted_sum(PlainProducts w) {
  ptx::wait_for_predecessor();
  const std::int64_t token = blockIdx.x;
  for (std::int64_t h = threadIdx.x; h < w.hidden_size; h += kThreads) {
    float sum = 0;
    for (std::int32_t k = 0; k < w.top_k; ++k) {
      const std::int64_t slot = token * w.top_k + k;
      const float weight = w.topk_weights == nullptr ? 1.0F : w.topk_weights[slot];
      if (weight == 0.0F || local_expert(w, slot) < 0) continue;
      sum = __fmaf_rn(weight, w.rows[slot * w.hidden_size + h], sum);
    }
    store_element(w.output, w.dtype, token * w.output_stride + h, sum);
  }
}

/// Slots over two dimensions of the grid: one holds at most 65535.
dim3 grid_for(std::int64_t columns, std::int64_t slots) {
  constexpr std::int64_t kMost = 32768;
  const std::int64_t y = slots < kMost ? slots : kMost;
  return dim3(static_cast<unsigned>((columns + kWarps - 1) / kWarps), static_cast<unsigned>(y),
              static_cast<unsigned>((slots + y - 1) / y));
}

}  // namespace

void plain_products(const PlainProducts& w, cudaStream_t stream) {
  using conclave::cuda::launch;
  const std::int64_t slots = w.num_tokens * w.top_k;
  if (w.num_local_experts > 0) {
    launch("first_product", first_product,
           {.grid = grid_for(w.intermediate_size, slots), .block = {kThreads}, .stream = stream}, w);
    launch("second_product", second_product,
           {.grid = grid_for(w.hidden_size, slots), .block = {kThreads}, .stream = stream}, w);
  }
  if (w.output == nullptr) return;
  launch("weighted_sum", weighted_sum,
         {.grid = {static_cast<unsigned>(w.num_tokens)}, .block = {kThreads}, .stream = stream}, w);
}

}  // namespace conclave::experts::cuda
