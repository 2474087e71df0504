// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The weighted sum of gather_sum.hpp: 8 columns of one token a thread, so that each row is read in 16-byte pieces.
#include "cuda/launch.hpp"
#include "cuda/ptx/control.cuh"
#include "cuda/ptx/matrix.cuh"
#include "experts/cuda/gather_sum.hpp"

namespace conclave::experts::cuda {
namespace {

namespace ptx = conclave::cuda::ptx;

constexpr int kThreads = 256;
constexpr int kColumns = 8;
/// Rows requested before the first is added: with k of 8 and less, all loads of a thread are under way at once.
constexpr int kInFlight = 8;

/// Eight columns of one row as they are loaded: bf16 in 16 bytes, or f32, which rows of an f16 layer have, in 32.
template <class T>
struct Chunk {
  uint4 words;
  __device__ void load(const void* rows, std::int64_t at) {
    words = __ldcs(reinterpret_cast<const uint4*>(static_cast<const T*>(rows) + at));
  }
  __device__ float2 pair(int i) const {
    return ptx::unpack2(i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w, T{});
  }
};
template <>
struct Chunk<float> {
  float4 low, high;
  __device__ void load(const void* rows, std::int64_t at) {
    const auto* from = reinterpret_cast<const float4*>(static_cast<const float*>(rows) + at);
    low = __ldcs(from);
    high = __ldcs(from + 1);
  }
  __device__ float2 pair(int i) const {
    return i == 0   ? float2{low.x, low.y}
           : i == 1 ? float2{low.z, low.w}
           : i == 2 ? float2{high.x, high.y}
                    : float2{high.z, high.w};
  }
};

template <class Row>
__device__ void add(float (&sum)[kColumns], const Chunk<Row>& row, float weight) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = row.pair(i);
    sum[2 * i] = __fmaf_rn(weight, two.x, sum[2 * i]);
    sum[2 * i + 1] = __fmaf_rn(weight, two.y, sum[2 * i + 1]);
  }
}

template <class T>
__device__ void store(T* to, const float (&sum)[kColumns], int columns) {
  if (columns == kColumns && reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
    uint4 packed;
    packed.x = ptx::pack2(sum[0], sum[1], T{});
    packed.y = ptx::pack2(sum[2], sum[3], T{});
    packed.z = ptx::pack2(sum[4], sum[5], T{});
    packed.w = ptx::pack2(sum[6], sum[7], T{});
    *reinterpret_cast<uint4*>(to) = packed;
    return;
  }
#pragma unroll
  for (int i = 0; i < kColumns; ++i)
    if (i < columns) to[i] = static_cast<T>(sum[i]);
}

template <class Row, class T>
__global__ void __launch_bounds__(kThreads) gather_sum_kernel(GatherSum w) {
  ptx::wait_for_predecessor();
  ptx::launch_dependents();
  const std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int32_t per_token = (w.hidden_size + kColumns - 1) / kColumns;
  const auto token = static_cast<std::int32_t>(chunk / per_token);
  if (token >= w.num_tokens) return;
  const std::int32_t column = static_cast<std::int32_t>(chunk % per_token) * kColumns;
  const std::int32_t* rows = w.slot_rows + static_cast<std::int64_t>(token) * w.top_k;
  const float* weights = w.weights == nullptr ? nullptr : w.weights + static_cast<std::int64_t>(token) * w.top_k;
  float sum[kColumns] = {};
  for (std::int32_t first = 0; first < w.top_k; first += kInFlight) {
    Chunk<Row> loaded[kInFlight];
    float weight[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const std::int32_t slot = first + i;
      const std::int32_t row = slot < w.top_k ? rows[slot] : -1;
      weight[i] = row < 0 ? 0.0F : weights == nullptr ? 1.0F : weights[slot];
      if (weight[i] != 0.0F) loaded[i].load(w.rows, row * w.row_stride + column);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i)
      if (weight[i] != 0.0F) add(sum, loaded[i], weight[i]);
  }
  store(static_cast<T*>(w.output) + token * w.output_stride + column, sum, min(kColumns, w.hidden_size - column));
}

template <class Row, class T>
void start(const GatherSum& work, cudaStream_t stream) {
  const std::int64_t chunks =
      static_cast<std::int64_t>(work.num_tokens) * ((work.hidden_size + kColumns - 1) / kColumns);
  const auto blocks = static_cast<unsigned>((chunks + kThreads - 1) / kThreads);
  conclave::cuda::launch("gather_sum", gather_sum_kernel<Row, T>,
                         {.grid = {blocks}, .block = {kThreads}, .stream = stream}, work);
}

}  // namespace

void gather_sum(const GatherSum& work, DType dtype, cudaStream_t stream) {
  if (dtype == DType::bf16)
    start<__nv_bfloat16, __nv_bfloat16>(work, stream);
  else
    start<float, __half>(work, stream);
}

}  // namespace conclave::experts::cuda
