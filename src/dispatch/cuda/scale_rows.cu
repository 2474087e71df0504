// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One thread for each element.
#include <cuda_runtime.h>

#include "cuda/check.hpp"
#include "cuda/elements.cuh"
#include "dispatch/cuda/scale_rows.hpp"

namespace conclave::dispatch {
namespace {

constexpr unsigned kThreads = 256;

struct Rows {
  const void* from;
  const void* weights;
  void* to;
  DType dtype, weights_dtype;
  std::int64_t from_stride, weights_stride, to_stride, rows, cols;
};

__global__ void __launch_bounds__(kThreads) scale(Rows r) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= r.rows * r.cols) return;
  const std::int64_t row = i / r.cols, col = i % r.cols;
  const float weight = cuda::load_element(r.weights, r.weights_dtype, row * r.weights_stride);
  const float x = cuda::load_element(r.from, r.dtype, row * r.from_stride + col);
  cuda::store_element(r.to, r.dtype, row * r.to_stride + col, x * weight);
}

}  // namespace

void scale_rows(const ConstTensorView& from, const ConstTensorView& weights, const TensorView& to,
                cudaStream_t stream) {
  if (to.numel() == 0) return;
  const Rows r{from.data,      weights.data,      to.data,      from.dtype, weights.dtype,
               from.stride(0), weights.stride(0), to.stride(0), to.size(0), to.size(1)};
  scale<<<static_cast<unsigned>((to.numel() + kThreads - 1) / kThreads), kThreads, 0, stream>>>(r);
  cuda::check(cudaGetLastError(), "scale_rows");
}

}  // namespace conclave::dispatch
