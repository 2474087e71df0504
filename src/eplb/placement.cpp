// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: sizes, and which expert each slot holds. Out: the maps in both directions, and how a load falls on ranks.
#include <algorithm>
#include <numeric>

#include "base/error.hpp"
#include "conclave/eplb.hpp"

namespace conclave {

void validate(const EplbConfig& c) {
  require(c.num_logical > 0, "eplb: num_logical {}, expected at least 1", c.num_logical);
  require(c.num_ranks > 0 && c.num_nodes > 0 && c.num_groups > 0,
          "eplb: {} ranks, {} nodes, {} groups, expected at least 1 of each", c.num_ranks, c.num_nodes, c.num_groups);
  require(c.num_physical >= c.num_logical, "eplb: num_physical {}, expected at least num_logical {}", c.num_physical,
          c.num_logical);
  require(c.num_physical >= c.num_ranks, "eplb: num_physical {}, expected at least one slot for each of {} ranks",
          c.num_physical, c.num_ranks);
  require(c.num_physical % c.num_ranks == 0, "eplb: num_physical {} over {} ranks, expected a multiple ({} or {})",
          c.num_physical, c.num_ranks, c.num_physical / c.num_ranks * c.num_ranks,
          (c.num_physical / c.num_ranks + 1) * c.num_ranks);
  require(c.num_ranks % c.num_nodes == 0, "eplb: {} ranks on {} nodes, expected a multiple", c.num_ranks, c.num_nodes);
  require(c.num_physical <= INT32_MAX, "eplb: num_physical {}, expected at most {}", c.num_physical, INT32_MAX);
}

EplbPolicy eplb_policy_of(const EplbConfig& c) noexcept {
  const bool whole = c.num_nodes > 1 && c.num_groups % c.num_nodes == 0 && c.num_logical % c.num_groups == 0;
  return whole ? EplbPolicy::hierarchical : EplbPolicy::global;
}

std::string_view name_of(EplbPolicy policy) noexcept {
  return policy == EplbPolicy::global ? "global" : "hierarchical";
}

ExpertPlacement make_placement(const EplbConfig& config, std::vector<std::int32_t> physical_to_logical) {
  validate(config);
  require(static_cast<std::int64_t>(physical_to_logical.size()) == config.num_physical,
          "placement: given {} slots, expected num_physical {}", physical_to_logical.size(), config.num_physical);
  ExpertPlacement p;
  p.num_ranks = config.num_ranks;
  p.max_replicas = config.max_replicas();
  p.physical_to_logical = std::move(physical_to_logical);
  p.replica_count.assign(static_cast<std::size_t>(config.num_logical), 0);
  p.logical_to_physical.assign(static_cast<std::size_t>(config.num_logical * p.max_replicas), -1);
  for (std::int64_t slot = 0; slot < config.num_physical; ++slot) {
    const std::int32_t expert = p.physical_to_logical[static_cast<std::size_t>(slot)];
    require(expert >= 0 && expert < config.num_logical, "placement: slot {} holds expert {}, expected 0 to {}", slot,
            expert, config.num_logical - 1);
    std::int32_t& count = p.replica_count[static_cast<std::size_t>(expert)];
    // More than max_replicas of one expert leave another without a slot: reported below, not written past the row.
    if (count < p.max_replicas)
      p.logical_to_physical[static_cast<std::size_t>(expert * p.max_replicas + count)] =
          static_cast<std::int32_t>(slot);
    ++count;
  }
  const auto missing = std::find(p.replica_count.begin(), p.replica_count.end(), 0);
  require(missing == p.replica_count.end(), "placement: expert {} has no slot, expected at least 1",
          missing - p.replica_count.begin());
  return p;
}

ExpertPlacement initial_placement(const EplbConfig& config) {
  validate(config);
  std::vector<std::int32_t> slots(static_cast<std::size_t>(config.num_physical));
  for (std::size_t i = 0; i < slots.size(); ++i)
    slots[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % config.num_logical);
  return make_placement(config, std::move(slots));
}

EplbBalance balance_of(const ExpertPlacement& placement, std::span<const double> load) {
  require(static_cast<std::int64_t>(load.size()) == placement.num_logical(), "load: given {} values, expected {}",
          load.size(), placement.num_logical());
  EplbBalance b;
  b.rank_load.assign(static_cast<std::size_t>(placement.num_ranks), 0.0);
  for (std::int64_t slot = 0; slot < placement.num_physical(); ++slot) {
    const auto expert = static_cast<std::size_t>(placement.physical_to_logical[static_cast<std::size_t>(slot)]);
    b.rank_load[static_cast<std::size_t>(placement.rank_of(slot))] += load[expert] / placement.replica_count[expert];
  }
  b.max = *std::max_element(b.rank_load.begin(), b.rank_load.end());
  b.mean = std::accumulate(b.rank_load.begin(), b.rank_load.end(), 0.0) / static_cast<double>(placement.num_ranks);
  return b;
}

}  // namespace conclave
