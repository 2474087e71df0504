// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: topk_ids [M, k] and perhaps an expert map. Out: the local slot of (token, pick), or -1. The one place that turns
// an id into an index, so that no stage reads the map or a weight at an id that is empty, stale or remote.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/error.hpp"
#include "base/slot_table.hpp"
#include "conclave/tensor.hpp"

namespace conclave {

class SlotLookup : public SlotTable {
 public:
  /// `num_experts` bounds the ids, `num_local_slots` the slots. Throws Error on dtypes or ranks that break the
  /// contract.
  SlotLookup(const ConstTensorView& topk_ids, const std::optional<ConstTensorView>& expert_map,
             std::int64_t num_experts, std::int64_t num_local_slots) {
    // Not require(): it would put the text together, and allocate, on every call.
    if (topk_ids.rank != 2 || (topk_ids.dtype != DType::i32 && topk_ids.dtype != DType::i64))
      fail(ErrorKind::invalid_argument, "topk_ids: given {}, expected i32 or i64 [num_tokens, top_k]",
           to_string(topk_ids));
    ids = topk_ids.data;
    wide_ids = topk_ids.dtype == DType::i64;
    tokens = topk_ids.size(0);
    picks = topk_ids.size(1);
    token_stride = topk_ids.stride(0);
    pick_stride = topk_ids.stride(1);
    num_ids = num_experts;
    num_local = num_local_slots;
    if (!expert_map.has_value()) return;
    if (expert_map->rank != 1 || expert_map->dtype != DType::i32)
      fail(ErrorKind::invalid_argument, "expert_map: given {}, expected i32 [num_experts]", to_string(*expert_map));
    map = expert_map->as<std::int32_t>();
    map_stride = expert_map->stride(0);
    num_ids = std::min(num_ids, expert_map->size(0));
  }

  std::int64_t num_tokens() const noexcept { return tokens; }
  std::int64_t top_k() const noexcept { return picks; }
};

}  // namespace conclave
