// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One thread for each output element: neighbours read neighbours, and the sum over picks runs in the order of k.
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/check.hpp"
#include "cuda/elements.cuh"
#include "reduce/cuda/rows.hpp"

namespace conclave::reduce {
namespace {

constexpr unsigned kThreads = 256;

struct Matrix {
  void* data;
  DType dtype;
  std::int64_t row_stride;
};

Matrix matrix_of(const ConstTensorView& v) {
  return {const_cast<void*>(v.data), v.dtype, v.stride(0)};
}

unsigned blocks_for(std::int64_t elements) {
  return static_cast<unsigned>((elements + kThreads - 1) / kThreads);
}

__global__ void __launch_bounds__(kThreads) copy_rows(Matrix from, Matrix to, std::int64_t rows, std::int64_t cols) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows * cols) return;
  const std::int64_t row = i / cols, col = i % cols;
  cuda::store_element(to.data, to.dtype, row * to.row_stride + col,
                      cuda::load_element(from.data, from.dtype, row * from.row_stride + col));
}

struct Sum {
  const void* rows;
  DType rows_dtype;
  std::int64_t token_stride, pick_stride;
  const void* ids;
  bool ids_are_i64;
  std::int64_t ids_stride, ids_step;
  const void* weights;  ///< Null: every weight counts as 1.
  DType weights_dtype;
  std::int64_t weights_stride, weights_step;
  const std::int32_t* map;
  std::int64_t map_stride, num_ids, top_k;
  Matrix out;
  std::int64_t num_tokens, cols;
};

/// As SlotLookup: no read at an id that is empty, stale or out of range.
__device__ bool has_row(const Sum& s, std::int64_t token, std::int64_t pick) {
  const std::int64_t at = token * s.ids_stride + pick * s.ids_step;
  const std::int64_t id =
      s.ids_are_i64 ? static_cast<const std::int64_t*>(s.ids)[at] : static_cast<const std::int32_t*>(s.ids)[at];
  return id >= 0 && id < s.num_ids && (s.map == nullptr || s.map[id * s.map_stride] >= 0);
}

__global__ void __launch_bounds__(kThreads) sum_rows(Sum s) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= s.num_tokens * s.cols) return;
  const std::int64_t token = i / s.cols, col = i % s.cols;
  float sum = 0;
  for (std::int64_t pick = 0; pick < s.top_k; ++pick) {
    if (!has_row(s, token, pick)) continue;
    const float weight = s.weights == nullptr ? 1.0F
                                              : cuda::load_element(s.weights, s.weights_dtype,
                                                                   token * s.weights_stride + pick * s.weights_step);
    if (weight == 0.0F) continue;
    const float x = cuda::load_element(s.rows, s.rows_dtype, token * s.token_stride + pick * s.pick_stride + col);
    sum = __fadd_rn(sum, __fmul_rn(weight, x));
  }
  cuda::store_element(s.out.data, s.out.dtype, token * s.out.row_stride + col, sum);
}

}  // namespace

void copy_rows_on_cuda(const ConstTensorView& from, const TensorView& to, Stream stream) {
  if (to.numel() == 0) return;
  copy_rows<<<blocks_for(to.numel()), kThreads, 0, static_cast<cudaStream_t>(stream.native)>>>(
      matrix_of(from), matrix_of(to), to.size(0), to.size(1));
  cuda::check(cudaGetLastError(), "copy_rows");
}

void sum_rows_on_cuda(const ReduceInput& in, const TensorView& output, Stream stream) {
  if (output.numel() == 0) return;
  Sum s{};
  s.rows = in.rows.data;
  s.rows_dtype = in.rows.dtype;
  s.token_stride = in.rows.stride(0);
  s.pick_stride = in.rows.stride(1);
  s.ids = in.topk_ids.data;
  s.ids_are_i64 = in.topk_ids.dtype == DType::i64;
  s.ids_stride = in.topk_ids.stride(0);
  s.ids_step = in.topk_ids.stride(1);
  s.weights = in.weight_already_applied ? nullptr : in.topk_weights.data;
  s.weights_dtype = in.topk_weights.dtype;
  s.weights_stride = in.topk_weights.stride(0);
  s.weights_step = in.topk_weights.stride(1);
  s.num_ids = in.num_experts;
  if (in.expert_map) {
    s.map = in.expert_map->as<std::int32_t>();
    s.map_stride = in.expert_map->stride(0);
    s.num_ids = std::min(s.num_ids, in.expert_map->size(0));
  }
  s.top_k = in.topk_ids.size(1);
  s.out = matrix_of(output);
  s.num_tokens = output.size(0);
  s.cols = output.size(1);
  sum_rows<<<blocks_for(output.numel()), kThreads, 0, static_cast<cudaStream_t>(stream.native)>>>(s);
  cuda::check(cudaGetLastError(), "sum_rows");
}

}  // namespace conclave::reduce
