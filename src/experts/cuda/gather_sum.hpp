// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: rows sorted by expert [rows, H], the row of each slot, router weights. Out: [M, H] in the order of tokens.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "conclave/dtype.hpp"

namespace conclave::experts::cuda {

struct GatherSum {
  const void* rows = nullptr;               ///< bf16, or f32 for an f16 output; rows begin at multiples of 16 bytes
  std::int64_t row_stride = 0;              ///< In elements, a multiple of 8.
  const std::int32_t* slot_rows = nullptr;  ///< [M, k]; -1: no row
  const float* weights = nullptr;           ///< [M, k]; null: every weight is 1
  void* output = nullptr;                   ///< [M, H]
  std::int64_t output_stride = 0;           ///< In elements.
  std::int32_t num_tokens = 0;
  std::int32_t top_k = 0;
  std::int32_t hidden_size = 0;
};

/// output[m] = sum over k in order of weight * row, in f32, rounded once. A token without rows becomes exact zeros; a
/// zero weight skips its row.
void gather_sum(const GatherSum& work, DType dtype, cudaStream_t stream);

}  // namespace conclave::experts::cuda
