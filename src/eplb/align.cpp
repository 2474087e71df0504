// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Sets of experts to ranks, experts to slots.
#include "eplb/align.hpp"

#include <algorithm>

namespace conclave::eplb {
namespace {

std::vector<std::int32_t> held_by(const ExpertPlacement& placement, std::int64_t rank) {
  const auto begin = placement.physical_to_logical.begin() + rank * placement.slots_per_rank();
  return {begin, begin + placement.slots_per_rank()};
}

/// How many entries two sorted lists have in common, repeats counted.
std::int64_t overlap(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
  std::int64_t common = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i] == b[j]) ++common;
    const bool step_a = a[i] <= b[j];
    const bool step_b = b[j] <= a[i];
    i += step_a ? 1 : 0;
    j += step_b ? 1 : 0;
  }
  return common;
}

struct Match {
  std::int64_t common, set, rank;
};

/// wanted[first, first + block) reordered in place.
void match_ranks(RankExperts& wanted, const ExpertPlacement& current, std::int64_t first, std::int64_t block) {
  std::vector<Match> matches;
  for (std::int64_t rank = first; rank < first + block; ++rank) {
    std::vector<std::int32_t> held = held_by(current, rank);
    std::sort(held.begin(), held.end());
    for (std::int64_t set = first; set < first + block; ++set)
      matches.push_back({overlap(wanted[static_cast<std::size_t>(set)], held), set, rank});
  }
  std::sort(matches.begin(), matches.end(), [](const Match& a, const Match& b) {
    if (a.common != b.common) return a.common > b.common;
    return a.set != b.set ? a.set < b.set : a.rank < b.rank;
  });
  RankExperts placed(static_cast<std::size_t>(block));
  std::vector<bool> set_used(static_cast<std::size_t>(block)), rank_used(static_cast<std::size_t>(block));
  for (const Match& m : matches) {
    const auto set = static_cast<std::size_t>(m.set - first);
    const auto rank = static_cast<std::size_t>(m.rank - first);
    if (set_used[set] || rank_used[rank]) continue;
    set_used[set] = rank_used[rank] = true;
    placed[rank] = std::move(wanted[static_cast<std::size_t>(m.set)]);
  }
  std::move(placed.begin(), placed.end(), wanted.begin() + first);
}

/// The slots of one rank: kept experts where they are, the rest in order of id into what is free.
void fill_slots(std::vector<std::int32_t> wanted, const std::vector<std::int32_t>& held, std::int32_t* slots) {
  for (std::size_t s = 0; s < held.size(); ++s) {
    const auto kept = std::find(wanted.begin(), wanted.end(), held[s]);
    slots[s] = kept == wanted.end() ? -1 : held[s];
    if (kept != wanted.end()) wanted.erase(kept);
  }
  auto next = wanted.begin();
  for (std::size_t s = 0; s < held.size(); ++s)
    if (slots[s] < 0) slots[s] = *next++;
}

}  // namespace

std::vector<std::int32_t> align(RankExperts wanted, const ExpertPlacement& current, std::int64_t block) {
  for (std::vector<std::int32_t>& experts : wanted) std::sort(experts.begin(), experts.end());
  for (std::int64_t first = 0; first < current.num_ranks; first += block) match_ranks(wanted, current, first, block);
  std::vector<std::int32_t> slots(static_cast<std::size_t>(current.num_physical()));
  for (std::int64_t rank = 0; rank < current.num_ranks; ++rank)
    fill_slots(std::move(wanted[static_cast<std::size_t>(rank)]), held_by(current, rank),
               slots.data() + rank * current.slots_per_rank());
  return slots;
}

}  // namespace conclave::eplb
