// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A dense product for small matrices that are not worth packing: out = a . w^T + bias, everything accumulated in f32.
#pragma once

#include <optional>
#include <span>

#include "conclave/config.hpp"
#include "conclave/stream.hpp"
#include "conclave/tensor.hpp"

namespace conclave::cpu {

/// out[m, n] = sum_k a[m, k] * w[n, k] + bias[n]. a [M, K], w [N, K], bias [N]: f32, bf16 or f16, each its own;
/// out [M, N] f32. Rows may be strided, columns are contiguous. Throws Error on other shapes or types.
/// Each element is one dot product with a fixed order of additions: its bits do not depend on M, N or the threads.
void dense(const ConstTensorView& a, const ConstTensorView& w, const std::optional<ConstTensorView>& bias,
           const TensorView& out, Executor& executor);

/// Plain pointers for one tile: rows [m0, m1) and columns [n0, n1) of the product. Strides in elements.
struct DenseTile {
  const void* a = nullptr;
  std::int64_t a_stride = 0;
  const void* w = nullptr;
  std::int64_t w_stride = 0;
  float* out = nullptr;
  std::int64_t out_stride = 0;
  std::int64_t m0 = 0, m1 = 0, n0 = 0, n1 = 0, k = 0;
};

/// The dot products of one instruction set; bias is not its business.
struct DenseKernel {
  const char* name;
  bool (*runs_on)(const CpuFeatures& cpu);
  void (*run)(const DenseTile& tile, DType a, DType w);
};

/// Widest first; the last runs everywhere.
std::span<const DenseKernel> dense_kernels() noexcept;

/// dense() by a given kernel.
void dense_with(const DenseKernel& kernel, const ConstTensorView& a, const ConstTensorView& w,
                const std::optional<ConstTensorView>& bias, const TensorView& out, Executor& executor);

}  // namespace conclave::cpu
