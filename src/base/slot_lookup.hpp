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
#include "conclave/tensor.hpp"

namespace conclave {

class SlotLookup {
 public:
  /// `num_experts` bounds the ids, `num_local` the slots. Throws Error on dtypes or ranks that break the contract.
  SlotLookup(const ConstTensorView& topk_ids, const std::optional<ConstTensorView>& expert_map,
             std::int64_t num_experts, std::int64_t num_local)
      : ids_(topk_ids), num_ids_(num_experts), num_local_(num_local) {
    // Not require(): it would put the text together, and allocate, on every call.
    if (ids_.rank != 2 || (ids_.dtype != DType::i32 && ids_.dtype != DType::i64))
      fail(ErrorKind::invalid_argument, "topk_ids: given {}, expected i32 or i64 [num_tokens, top_k]", to_string(ids_));
    if (!expert_map.has_value()) return;
    if (expert_map->rank != 1 || expert_map->dtype != DType::i32)
      fail(ErrorKind::invalid_argument, "expert_map: given {}, expected i32 [num_experts]", to_string(*expert_map));
    map_ = expert_map->as<std::int32_t>();
    map_stride_ = expert_map->stride(0);
    num_ids_ = std::min(num_ids_, expert_map->size(0));
  }

  std::int64_t num_tokens() const noexcept { return ids_.size(0); }
  std::int64_t top_k() const noexcept { return ids_.size(1); }

  std::int64_t id(std::int64_t token, std::int64_t pick) const noexcept {
    const std::int64_t at = token * ids_.stride(0) + pick * ids_.stride(1);
    return ids_.dtype == DType::i32 ? ids_.as<std::int32_t>()[at] : ids_.as<std::int64_t>()[at];
  }

  std::int64_t operator()(std::int64_t token, std::int64_t pick) const noexcept {
    const std::int64_t global = id(token, pick);
    if (global < 0 || global >= num_ids_) return -1;
    const std::int64_t slot = map_ == nullptr ? global : map_[global * map_stride_];
    return slot < num_local_ ? std::max<std::int64_t>(slot, -1) : -1;
  }

 private:
  ConstTensorView ids_;
  const std::int32_t* map_ = nullptr;
  std::int64_t map_stride_ = 0;
  std::int64_t num_ids_;
  std::int64_t num_local_;
};

}  // namespace conclave
