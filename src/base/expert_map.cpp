// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// (experts, ranks, rank) -> which global id is which local slot. Rule of the reference's determine_expert_map.
#include "conclave/expert_map.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace conclave {
namespace {

void check(std::int64_t num_experts, std::int64_t num_ranks) {
  require(num_experts >= 0, "expert map: num_experts {}, expected 0 or more", num_experts);
  require(num_ranks > 0, "expert map: num_ranks {}, expected more than 0", num_ranks);
}

}  // namespace

ExpertMap make_expert_map(std::int64_t num_experts, std::int64_t num_ranks, std::int64_t rank, Placement placement) {
  check(num_experts, num_ranks);
  require(rank >= 0 && rank < num_ranks, "expert map: rank {}, expected 0 to {}", rank, num_ranks - 1);
  const std::int64_t base = num_experts / num_ranks;
  const std::int64_t extra = num_experts % num_ranks;
  const std::int64_t num_local = base + (rank < extra ? 1 : 0);
  const std::int64_t start = rank * base + std::min(rank, extra);
  ExpertMap map;
  map.local_slot.assign(static_cast<std::size_t>(num_experts), -1);
  for (std::int64_t slot = 0; slot < num_local; ++slot) {
    const std::int64_t id = placement == Placement::linear ? start + slot : rank + slot * num_ranks;
    map.local_slot[static_cast<std::size_t>(id)] = static_cast<std::int32_t>(slot);
    map.global_id.push_back(static_cast<std::int32_t>(id));
  }
  return map;
}

std::vector<std::int32_t> round_robin_global_to_physical(std::int64_t num_experts, std::int64_t num_ranks) {
  check(num_experts, num_ranks);
  const std::int64_t base = num_experts / num_ranks;
  const std::int64_t extra = num_experts % num_ranks;
  std::vector<std::int32_t> table;
  for (std::int64_t id = 0; id < num_experts; ++id) {
    const std::int64_t owner = id % num_ranks;
    table.push_back(static_cast<std::int32_t>(owner * base + std::min(owner, extra) + id / num_ranks));
  }
  return table;
}

}  // namespace conclave
