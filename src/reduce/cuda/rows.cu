// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One thread for each output element: neighbours read neighbours, and the sum over picks runs in the order of k.
#include <cuda_runtime.h>

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

struct Weights {
  const void* data;  ///< Null: every weight counts as 1.
  DType dtype;
  std::int64_t stride, step;

  __device__ float of(std::int64_t token, std::int64_t pick) const {
    return data == nullptr ? 1.0F : cuda::load_element(data, dtype, token * stride + pick * step);
  }
};

Weights weights_of(const ReduceInput& in) {
  const ConstTensorView& w = in.topk_weights;
  return {in.weight_already_applied ? nullptr : w.data, w.dtype, w.stride(0), w.stride(1)};
}

struct Sum {
  const void* rows;
  DType rows_dtype;
  std::int64_t stride0, stride1, capacity;  ///< Of rows; capacity is T, where the rows are batched.
  SlotTable slot_of;
  Weights weights;
  Matrix out;
  std::int64_t cols;
};

Sum sum_of(const ReduceInput& in, const SlotTable& slot_of, const TensorView& output) {
  return {in.rows.data, in.rows.dtype,  in.rows.stride(0), in.rows.stride(1), in.rows.size(1),
          slot_of,      weights_of(in), matrix_of(output), output.size(1)};
}

__device__ float add_term(const Sum& s, float sum, float weight, std::int64_t at) {
  return __fadd_rn(sum, __fmul_rn(weight, cuda::load_element(s.rows, s.rows_dtype, at)));
}

__global__ void __launch_bounds__(kThreads) sum_rows(Sum s) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= s.slot_of.tokens * s.cols) return;
  const std::int64_t token = i / s.cols, col = i % s.cols;
  float sum = 0;
  for (std::int64_t pick = 0; pick < s.slot_of.picks; ++pick) {
    if (s.slot_of(token, pick) < 0) continue;
    const float weight = s.weights.of(token, pick);
    if (weight == 0.0F) continue;
    sum = add_term(s, sum, weight, token * s.stride0 + pick * s.stride1 + col);
  }
  cuda::store_element(s.out.data, s.out.dtype, token * s.out.row_stride + col, sum);
}

extern __shared__ std::int32_t picked[];

/// Ints that the slots of a token take: the compiler reads them four at a time.
__host__ __device__ constexpr std::int64_t room_for(std::int64_t picks) {
  return (picks + 3) / 4 * 4;
}

/// A block a token. A pick's row at its expert is the number of earlier tokens that have it there too: counted anew by
/// each block, O(M k^2) comparisons against k H products, because nothing but the ids is at hand.
__global__ void __launch_bounds__(kThreads) sum_batched_rows(Sum s) {
  const std::int64_t token = blockIdx.x;
  const auto picks = static_cast<std::int32_t>(s.slot_of.picks);
  std::int32_t* slots = picked;
  std::int32_t* rows = picked + room_for(picks);
  for (std::int32_t pick = threadIdx.x; pick < picks; pick += kThreads) {
    slots[pick] = static_cast<std::int32_t>(s.slot_of(token, pick));
    rows[pick] = 0;
  }
  __syncthreads();
  for (std::int64_t earlier = threadIdx.x; earlier < token; earlier += kThreads)
    for (std::int32_t pick = 0; pick < picks; ++pick) {
      const std::int64_t slot = s.slot_of(earlier, pick);
      if (slot < 0 || !s.slot_of.is_first(earlier, pick, slot)) continue;
      for (std::int32_t mine = 0; mine < picks; ++mine)
        if (slots[mine] == slot) atomicAdd(&rows[mine], 1);
    }
  __syncthreads();
  for (std::int64_t col = threadIdx.x; col < s.cols; col += kThreads) {
    float sum = 0;
    for (std::int32_t pick = 0; pick < picks; ++pick) {
      const float weight = s.weights.of(token, pick);
      if (slots[pick] < 0 || rows[pick] >= s.capacity || weight == 0.0F) continue;
      sum = add_term(s, sum, weight, slots[pick] * s.stride0 + rows[pick] * s.stride1 + col);
    }
    cuda::store_element(s.out.data, s.out.dtype, token * s.out.row_stride + col, sum);
  }
}

}  // namespace

void copy_rows_on_cuda(const ConstTensorView& from, const TensorView& to, Stream stream) {
  if (to.numel() == 0) return;
  copy_rows<<<blocks_for(to.numel()), kThreads, 0, static_cast<cudaStream_t>(stream.native)>>>(
      matrix_of(from), matrix_of(to), to.size(0), to.size(1));
  cuda::check(cudaGetLastError(), "copy_rows");
}

void sum_rows_on_cuda(const ReduceInput& in, const SlotTable& slot_of, const TensorView& output, Stream stream) {
  if (output.numel() == 0) return;
  sum_rows<<<blocks_for(output.numel()), kThreads, 0, static_cast<cudaStream_t>(stream.native)>>>(
      sum_of(in, slot_of, output));
  cuda::check(cudaGetLastError(), "sum_rows");
}

void sum_batched_rows_on_cuda(const ReduceInput& in, const SlotTable& slot_of, const TensorView& output,
                              Stream stream) {
  if (output.numel() == 0) return;
  const auto bytes = static_cast<std::size_t>(2 * room_for(slot_of.picks)) * sizeof(std::int32_t);
  sum_batched_rows<<<static_cast<unsigned>(output.size(0)), kThreads, bytes,
                     static_cast<cudaStream_t>(stream.native)>>>(sum_of(in, slot_of, output));
  cuda::check(cudaGetLastError(), "sum_batched_rows");
}

}  // namespace conclave::reduce
