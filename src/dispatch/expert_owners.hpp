// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a problem. Out: for each global expert id, the rank that holds it and its slot there.
#pragma once

#include <cstdint>
#include <vector>

#include "conclave/config.hpp"

namespace conclave::dispatch {

class ExpertOwners {
 public:
  explicit ExpertOwners(const Problem& problem);

  int num_ranks() const noexcept { return num_ranks_; }
  /// -1 for an id that is empty or no expert.
  int rank_of(std::int64_t id) const noexcept { return known(id) ? rank_[static_cast<std::size_t>(id)] : -1; }
  std::int64_t slot_of(std::int64_t id) const noexcept { return known(id) ? slot_[static_cast<std::size_t>(id)] : -1; }
  std::int64_t num_local(int rank) const noexcept { return num_local_[static_cast<std::size_t>(rank)]; }

 private:
  bool known(std::int64_t id) const noexcept { return id >= 0 && id < static_cast<std::int64_t>(rank_.size()); }
  int num_ranks_;
  std::vector<std::int32_t> rank_, slot_;  ///< [E]
  std::vector<std::int64_t> num_local_;    ///< [ranks]
};

}  // namespace conclave::dispatch
