// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The kernels of dense(): what it gives them once everything is checked.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "conclave/dtype.hpp"

namespace conclave::cuda {

/// Pointers and sizes of one dense product (dense.hpp). Strides in elements.
struct DenseProduct {
  const void* a = nullptr;
  const void* w = nullptr;
  const void* bias = nullptr;
  void* out = nullptr;
  std::int64_t a_stride = 0, w_stride = 0, out_stride = 0;
  std::int32_t m = 0, n = 0, k = 0;
  DType a_dtype{}, w_dtype{}, bias_dtype{}, out_dtype{};
};

/// a and w both bf16 or both f16, K and row strides multiples of 8, addresses of 16.
void dense_on_tensor_cores(const DenseProduct& product, int device, cudaStream_t stream);
/// Anything.
void dense_element_by_element(const DenseProduct& product, cudaStream_t stream);

}  // namespace conclave::cuda
