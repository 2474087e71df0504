// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a problem. Out: how many experts with weights this rank holds, which is the first extent of the batched format.
// Both placements of make_expert_map give a rank this many; without expert parallelism it holds all.
#pragma once

#include <cstdint>

#include "conclave/config.hpp"

namespace conclave {

inline std::int64_t num_local_experts(const Problem& problem) noexcept {
  const std::int64_t all = problem.moe.num_weight_experts();
  const std::int64_t ranks = problem.parallel.ep_size;
  return all / ranks + (problem.parallel.ep_rank < all % ranks ? 1 : 0);
}

}  // namespace conclave
