// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: physical ids of each pass. Out: how many tokens each expert got over a window of passes.
#include <algorithm>

#include "base/error.hpp"
#include "base/slot_lookup.hpp"
#include "conclave/eplb.hpp"

namespace conclave {

EplbLoad::EplbLoad(std::int64_t num_physical, std::int64_t window) : window_(window) {
  require(num_physical > 0 && window > 0, "eplb load: {} slots over {} passes, expected at least 1 of each",
          num_physical, window);
  total_.assign(static_cast<std::size_t>(num_physical), 0);
  passes_.assign(static_cast<std::size_t>(num_physical * window), 0);
}

void EplbLoad::record(const ConstTensorView& physical_ids, std::int64_t num_valid_tokens) {
  const auto num_physical = static_cast<std::int64_t>(total_.size());
  const SlotLookup slot_of(physical_ids, std::nullopt, num_physical, num_physical);
  std::int64_t* pass = passes_.data() + now_ * num_physical;
  const std::int64_t rows =
      num_valid_tokens < 0 ? slot_of.num_tokens() : std::min(num_valid_tokens, slot_of.num_tokens());
  for (std::int64_t token = 0; token < rows; ++token)
    for (std::int64_t pick = 0; pick < slot_of.top_k(); ++pick) {
      const std::int64_t slot = slot_of(token, pick);
      if (slot < 0) continue;
      ++pass[slot];
      ++total_[static_cast<std::size_t>(slot)];
    }
}

void EplbLoad::next_pass() noexcept {
  now_ = (now_ + 1) % window_;
  std::int64_t* oldest = passes_.data() + now_ * static_cast<std::int64_t>(total_.size());
  for (std::size_t slot = 0; slot < total_.size(); ++slot) total_[slot] -= std::exchange(oldest[slot], 0);
}

void EplbLoad::clear() noexcept {
  std::fill(total_.begin(), total_.end(), 0);
  std::fill(passes_.begin(), passes_.end(), 0);
}

std::vector<double> logical_load(const ExpertPlacement& placement, std::span<const std::int64_t> physical_load) {
  require(static_cast<std::int64_t>(physical_load.size()) == placement.num_physical(),
          "physical load: given {} values, expected {}", physical_load.size(), placement.num_physical());
  std::vector<double> load(static_cast<std::size_t>(placement.num_logical()), 0.0);
  for (std::size_t slot = 0; slot < physical_load.size(); ++slot)
    load[static_cast<std::size_t>(placement.physical_to_logical[slot])] += static_cast<double>(physical_load[slot]);
  return load;
}

std::vector<double> logical_load(const ExpertPlacement& placement, std::span<const std::int64_t> physical_load,
                                 Communicator& communicator) {
  // Counts are gathered as integers: whatever the order of a sum, every rank has the same.
  const std::size_t slots = physical_load.size();
  std::vector<std::int64_t> all(slots * static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(physical_load.data(), static_cast<std::int64_t>(slots * sizeof(std::int64_t)), all.data());
  std::vector<std::int64_t> sum(slots, 0);
  for (std::size_t i = 0; i < all.size(); ++i) sum[i % slots] += all[i];
  return logical_load(placement, sum);
}

}  // namespace conclave
