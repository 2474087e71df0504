// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What a layer with enable_eplb does between its router and its parts: logical ids become slots, and the tokens of each
// slot are counted. Parts see slots alone: to them there are as many experts as slots.
#pragma once

#include <string>

#include "conclave/config.hpp"
#include "conclave/eplb.hpp"
#include "conclave/flow.hpp"

namespace conclave {

/// Slots over all ranks, or experts where there are no replicas: what parts are asked about.
std::int64_t num_slots_of_experts(const Problem& layer) noexcept;

/// Throws Error if the fields about replicas contradict each other or the ranks.
void validate_replicas(const Problem& layer);

class Replicas {
 public:
  explicit Replicas(const Problem& layer);

  const ExpertPlacement& placement() const noexcept { return placement_; }
  /// physical_ids i32 [M, slots] := the slots of logical ids; they are counted as one pass.
  void choose(const Routing& logical, const TensorView& physical_ids, Stream stream);
  /// A placement for what was counted on all ranks, and its report. Collective; moves nothing.
  std::pair<ExpertPlacement, std::string> propose(Communicator& communicator) const;
  EplbExchange exchange_to(const ExpertPlacement& next) const { return plan_exchange(config_, placement_, next); }
  /// The weights are where `next` says; counting begins again.
  void adopt(ExpertPlacement next);

 private:
  EplbConfig config_;
  ExpertPlacement placement_;
  EplbLoad load_;
};

}  // namespace conclave
