// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Which rank holds which expert: global id -> local slot, or -1 where another rank has it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace conclave {

enum class Placement : std::uint8_t {
  linear,       ///< rank r holds a contiguous range; the first (E mod ranks) ranks hold one more
  round_robin,  ///< rank r holds r, r + ranks, r + 2 ranks, ...
};

struct ExpertMap {
  std::vector<std::int32_t> local_slot;  ///< [E]: slot on this rank or -1.
  std::vector<std::int32_t> global_id;   ///< [E_local]: its inverse.
  std::int64_t num_local() const noexcept { return static_cast<std::int64_t>(global_id.size()); }
};

/// The map of `rank` among `num_ranks`. Any E, even fewer experts than ranks. Throws Error on a rank out of range.
ExpertMap make_expert_map(std::int64_t num_experts, std::int64_t num_ranks, std::int64_t rank, Placement placement);

/// Round robin as transports want it: physical slot = owner * base + min(owner, rem) + g / ranks, owner = g mod ranks.
std::vector<std::int32_t> round_robin_global_to_physical(std::int64_t num_experts, std::int64_t num_ranks);

std::string_view name_of(Placement placement) noexcept;
Placement placement_from_name(std::string_view name);

}  // namespace conclave
