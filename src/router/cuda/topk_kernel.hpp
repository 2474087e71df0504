// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What one launch of the top-k kernel needs: the rule as numbers, and where rows are. Strides in elements.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "conclave/dtype.hpp"
#include "conclave/routing.hpp"

namespace conclave::router {

/// Registers of a warp hold one row: 32 values a lane.
inline constexpr std::int64_t kMostExpertsOnCuda = 1024;

struct TopkWork {
  const void* logits = nullptr;
  const float* bias = nullptr;
  const void* token_ids = nullptr;           ///< Null: no hash table.
  const std::int32_t* hash_table = nullptr;  ///< [table_rows, top_k]
  std::int32_t* ids = nullptr;
  float* weights = nullptr;
  std::int64_t logits_stride = 0, token_stride = 0, table_stride = 0, ids_stride = 0, weights_stride = 0;
  std::int64_t num_tokens = 0, table_rows = 0;
  std::int32_t num_experts = 0, top_k = 0, num_slots = 0;
  std::int32_t num_groups = 1, top_groups = 1;
  DType dtype = DType::f32;
  Scoring scoring = Scoring::softmax;
  GroupScore group_score = GroupScore::max;
  Renormalize renormalize = Renormalize::none;
  bool tokens_are_i64 = false;
  bool ranks_logits = false;  ///< Rule::ranks_logits
  bool sparsemixer = false;
  float jitter_limit = 0;
  float epsilon = 0, factor = 1, shared_weight = 1;
};

/// One launch; neither allocates nor waits.
void launch_topk(const TopkWork& work, cudaStream_t stream);

}  // namespace conclave::router
