// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The two products and the sum, as plainly as a GPU allows: a warp an output element, f32 throughout.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "conclave/dtype.hpp"
#include "experts/activation.hpp"

namespace conclave::experts::cuda {

struct PlainProducts {
  const void* hidden_states = nullptr;  ///< [M, H], f32, bf16 or f16
  DType dtype = DType::f32;             ///< Of the hidden states and of the output.
  std::int64_t token_stride = 0;
  const std::int32_t* topk_ids = nullptr;  ///< [M, k]; or, batched, where slot e * max_rows + r is row r of expert e:
  const std::int32_t* counts = nullptr;    ///< valid rows of each expert
  std::int64_t max_rows = 0;
  const float* topk_weights = nullptr;       ///< [M, k]; null: every weight is 1
  const std::int32_t* expert_map = nullptr;  ///< [num_ids] or null
  std::int32_t num_ids = 0;
  std::int32_t num_local_experts = 0;
  std::int32_t top_k = 0;
  std::int64_t num_tokens = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  W13Layout layout = W13Layout::gate_up;
  ActivationFn activation;
  const float* w13 = nullptr;  ///< [E, 2I | I, H]
  const float* w2 = nullptr;   ///< [E, H, I]
  const float* w13_bias = nullptr;
  const float* w2_bias = nullptr;
  float* inner = nullptr;  ///< [M * k, I]
  float* rows = nullptr;   ///< [M * k, H]
  void* output = nullptr;  ///< [M, H]; null: the rows are the result
  std::int64_t output_stride = 0;
};

void plain_products(const PlainProducts& work, cudaStream_t stream);

}  // namespace conclave::experts::cuda
