// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A problem's routing rule with its constants in f32, and one row of it in numbers.
#pragma once

#include <cstdint>

#include "conclave/config.hpp"

namespace conclave::router {

struct Rule {
  explicit Rule(const Problem& problem)
      : routing(problem.moe.routing),
        num_experts(problem.moe.num_experts),
        top_k(problem.moe.top_k),
        num_slots(problem.moe.num_slots()),
        epsilon(static_cast<float>(routing.epsilon)),
        factor(problem.moe.routed_scale_on_output ? 1.0F : static_cast<float>(routing.routed_scaling_factor)),
        shared_weight(static_cast<float>(routing.fused_shared_weight)),
        checked(problem.moe.checked) {}

  RoutingConfig routing;
  std::int64_t num_experts;
  std::int64_t top_k;
  std::int64_t num_slots;
  float epsilon;
  float factor;  ///< 1 where the output is scaled instead of the weights.
  float shared_weight;
  bool checked;

  /// Experts are ordered by their logits; otherwise by their scores.
  bool ranks_logits() const noexcept {
    return routing.score_after_topk || routing.scoring == Scoring::logits ||
           routing.method == RoutingMethod::sparsemixer;
  }
  bool has_groups() const noexcept { return routing.num_expert_group > 1; }
  std::int64_t group_size() const noexcept { return num_experts / routing.num_expert_group; }
};

/// One token: logits as f32, their scores (step 1; the logits where these are ranked), and the bias or null.
struct Row {
  const float* logits;
  const float* scores;
  const float* bias;
};

}  // namespace conclave::router
