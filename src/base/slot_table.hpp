// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// topk_ids [M, k] and perhaps an expert map, as plain numbers that a kernel can take by value: the local slot of
// (token, pick). SlotLookup (slot_lookup.hpp) makes it, checked.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"

namespace conclave {

struct SlotTable {
  const void* ids = nullptr;
  bool wide_ids = false;  ///< i64, else i32.
  std::int64_t tokens = 0, picks = 0, token_stride = 0, pick_stride = 1;
  const std::int32_t* map = nullptr;  ///< Null: a global id is a local slot.
  std::int64_t map_stride = 1;
  std::int64_t num_ids = 0;    ///< Ids are below this.
  std::int64_t num_local = 0;  ///< And slots below this.

  CONCLAVE_HOST_DEVICE std::int64_t id(std::int64_t token, std::int64_t pick) const noexcept {
    const std::int64_t at = token * token_stride + pick * pick_stride;
    return wide_ids ? static_cast<const std::int64_t*>(ids)[at] : static_cast<const std::int32_t*>(ids)[at];
  }

  /// The slot, or -1 where the id is empty, stale or remote.
  CONCLAVE_HOST_DEVICE std::int64_t operator()(std::int64_t token, std::int64_t pick) const noexcept {
    const std::int64_t global = id(token, pick);
    if (global < 0 || global >= num_ids) return -1;
    const std::int64_t slot = map == nullptr ? global : map[global * map_stride];
    return slot >= 0 && slot < num_local ? slot : -1;
  }

  /// False: an earlier pick of the token has the same slot.
  CONCLAVE_HOST_DEVICE bool is_first(std::int64_t token, std::int64_t pick, std::int64_t slot) const noexcept {
    for (std::int64_t before = 0; before < pick; ++before)
      if ((*this)(token, before) == slot) return false;
    return true;
  }
};

}  // namespace conclave
