// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The expert maps of all ranks, turned round.
#include "dispatch/expert_owners.hpp"

#include "conclave/expert_map.hpp"

namespace conclave::dispatch {

ExpertOwners::ExpertOwners(const Problem& problem) : num_ranks_(static_cast<int>(problem.parallel.ep_size)) {
  const std::int64_t num_experts = problem.moe.num_weight_experts();
  rank_.assign(static_cast<std::size_t>(num_experts), -1);
  slot_.assign(static_cast<std::size_t>(num_experts), -1);
  for (int rank = 0; rank < num_ranks_; ++rank) {
    const ExpertMap map = make_expert_map(num_experts, num_ranks_, rank, problem.parallel.placement);
    num_local_.push_back(map.num_local());
    for (std::size_t slot = 0; slot < map.global_id.size(); ++slot) {
      rank_[static_cast<std::size_t>(map.global_id[slot])] = rank;
      slot_[static_cast<std::size_t>(map.global_id[slot])] = static_cast<std::int32_t>(slot);
    }
  }
}

}  // namespace conclave::dispatch
