// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A block an expert finds its tokens, without atomics, so that they come in token order; then blocks copy them.
#include <algorithm>

#include "cuda/elements.cuh"
#include "cuda/launch.hpp"
#include "cuda/ptx/control.cuh"
#include "dispatch/cuda/place_rows.hpp"

namespace conclave::dispatch {
namespace {

namespace ptx = cuda::ptx;

constexpr int kPlaceThreads = 1024;
constexpr int kPlaceWarps = kPlaceThreads / 32;
constexpr int kCopyThreads = 256;
/// Blocks that share the rows of one expert: a hot one must not be one multiprocessor's alone.
constexpr std::int64_t kMostBlocks = 64;

__device__ bool has_pick(const SlotTable& slot_of, std::int64_t token, std::int64_t expert) {
  if (token >= slot_of.tokens) return false;
  for (std::int64_t pick = 0; pick < slot_of.picks; ++pick)
    if (slot_of(token, pick) == expert) return true;
  return false;
}

__global__ void __launch_bounds__(kPlaceThreads)
    place(SlotTable slot_of, std::int32_t* counts, std::int32_t* row_tokens) {
  __shared__ std::int32_t of_warp[kPlaceWarps];
  ptx::wait_for_predecessor();
  ptx::launch_dependents();
  const std::int64_t expert = blockIdx.x;
  const int warp = threadIdx.x / 32;
  const unsigned lane = threadIdx.x % 32;
  std::int32_t* mine = row_tokens + expert * slot_of.tokens;
  std::int32_t placed = 0;
  for (std::int64_t first = 0; first < slot_of.tokens; first += kPlaceThreads) {
    const std::int64_t token = first + threadIdx.x;
    const bool picked = has_pick(slot_of, token, expert);
    const unsigned peers = __ballot_sync(~0U, picked);
    if (lane == 0) of_warp[warp] = __popc(peers);
    __syncthreads();
    std::int32_t before = 0;
    std::int32_t all = 0;
    for (int w = 0; w < kPlaceWarps; ++w) {
      if (w < warp) before += of_warp[w];
      all += of_warp[w];
    }
    if (picked) mine[placed + before + __popc(peers & ((1U << lane) - 1))] = static_cast<std::int32_t>(token);
    placed += all;
    __syncthreads();
  }
  if (threadIdx.x == 0) counts[expert] = placed;
}

struct CopyRows {
  const void* from = nullptr;
  DType dtype = DType::f32;
  std::int64_t from_stride = 0;
  const std::int32_t* counts = nullptr;
  const std::int32_t* row_tokens = nullptr;
  const void* weights = nullptr;  ///< Null: rows are copied as they are.
  DType weights_dtype = DType::f32;
  std::int64_t weights_stride = 0;
  void* to = nullptr;
  std::int64_t capacity = 0, cols = 0;
  bool whole_chunks = false;  ///< Every row is made of aligned pieces of 16 bytes.
};

__device__ void copy_row(const CopyRows& w, std::int64_t token, std::int64_t row) {
  if (w.weights == nullptr && w.whole_chunks) {
    const std::int64_t bytes = w.dtype == DType::f32 ? 4 : 2;
    const auto* from = reinterpret_cast<const uint4*>(static_cast<const char*>(w.from) + token * w.from_stride * bytes);
    auto* to = reinterpret_cast<uint4*>(static_cast<char*>(w.to) + row * w.cols * bytes);
    for (std::int64_t i = threadIdx.x; i < w.cols * bytes / 16; i += kCopyThreads) to[i] = from[i];
    return;
  }
  const float weight =
      w.weights == nullptr ? 1.0F : cuda::load_element(w.weights, w.weights_dtype, token * w.weights_stride);
  for (std::int64_t col = threadIdx.x; col < w.cols; col += kCopyThreads) {
    const float x = cuda::load_element(w.from, w.dtype, token * w.from_stride + col);
    cuda::store_element(w.to, w.dtype, row * w.cols + col, w.weights == nullptr ? x : __fmul_rn(x, weight));
  }
}

__global__ void __launch_bounds__(kCopyThreads) copy_placed(CopyRows w) {
  ptx::wait_for_predecessor();
  ptx::launch_dependents();
  const std::int64_t expert = blockIdx.x;
  const std::int32_t count = w.counts[expert];
  for (std::int64_t row = blockIdx.y; row < count; row += gridDim.y) {
    const std::int64_t at = expert * w.capacity + row;
    copy_row(w, w.row_tokens[at], at);
  }
}

bool in_chunks(const CopyRows& w) {
  const std::int64_t bytes = w.dtype == DType::f32 ? 4 : 2;
  return w.cols * bytes % 16 == 0 && w.from_stride * bytes % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(w.from) % 16 == 0 && reinterpret_cast<std::uintptr_t>(w.to) % 16 == 0;
}

}  // namespace

void place_rows(const SlotTable& slot_of, const TensorView& counts, const TensorView& row_tokens, cudaStream_t stream) {
  if (counts.numel() == 0) return;
  cuda::launch("place_rows", place,
               {.grid = {static_cast<unsigned>(counts.size(0))}, .block = {kPlaceThreads}, .stream = stream}, slot_of,
               counts.as<std::int32_t>(), row_tokens.as<std::int32_t>());
}

void copy_placed_rows(const ConstTensorView& from, const TensorView& counts, const TensorView& row_tokens,
                      const ConstTensorView* weights, const TensorView& to, cudaStream_t stream) {
  if (to.numel() == 0) return;
  CopyRows work;
  work.from = from.data;
  work.dtype = from.dtype;
  work.from_stride = from.stride(0);
  work.counts = counts.as<std::int32_t>();
  work.row_tokens = row_tokens.as<std::int32_t>();
  work.to = to.data;
  work.capacity = to.size(1);
  work.cols = to.size(2);
  if (weights != nullptr) {
    work.weights = weights->data;
    work.weights_dtype = weights->dtype;
    work.weights_stride = weights->stride(0);
  }
  work.whole_chunks = in_chunks(work);
  cuda::launch("copy_placed_rows", copy_placed,
               {.grid = {static_cast<unsigned>(to.size(0)), static_cast<unsigned>(std::min(kMostBlocks, to.size(1)))},
                .block = {kCopyThreads},
                .stream = stream},
               work);
}

}  // namespace conclave::dispatch
