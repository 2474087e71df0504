// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the experts that each rank shall hold, and what ranks hold now. Out: slots, so that as little as possible moves.
#pragma once

#include <cstdint>
#include <vector>

#include "conclave/eplb.hpp"

namespace conclave::eplb {

/// Experts of each rank, in any order; slots_per_rank() of them.
using RankExperts = std::vector<std::vector<std::int32_t>>;

/// physical_to_logical. Ranks of one block of `block` neighbours are interchangeable: each set goes to the rank that
/// has most of it already, best match first, ties to the lower set and rank. Then what a rank has stays in its slot.
std::vector<std::int32_t> align(RankExperts wanted, const ExpertPlacement& current, std::int64_t block);

}  // namespace conclave::eplb
