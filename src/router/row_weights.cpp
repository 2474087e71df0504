// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the chosen ids of a row. Out: its weights. The same code behind every router.
#include "router/row_weights.hpp"

#include <algorithm>
#include <cmath>

#include "router/score.hpp"

namespace conclave::router {
namespace {

bool is_expert(const Rule& rule, std::int32_t id) {
  return id >= 0 && id < rule.num_experts;
}

/// PhiMoE's rule at inference: each pick is weighed by a softmax over the experts not picked before whose logit is near
/// the largest of them: (top - x) / max(|x|, top) <= 2 * jitter. A quotient that is NaN (0 / 0, inf / inf) counts as
/// near, as in the original.
void weigh_sparsemixer(const Rule& rule, const Row& row, const std::int32_t* ids, float* weights,
                       float* left) noexcept {
  constexpr float kPicked = std::numeric_limits<float>::quiet_NaN();
  const float limit = static_cast<float>(2.0 * rule.routing.sparsemixer_jitter);
  std::copy_n(row.logits, rule.num_experts, left);
  for (std::int64_t k = 0; k < rule.top_k; ++k) {
    const float top = left[ids[k]];
    double sum = 0;
    for (std::int64_t e = 0; e < rule.num_experts; ++e) {
      const float x = left[e];
      if (std::isnan(x) || (top - x) / std::fmax(std::fabs(x), top) > limit) continue;
      sum += static_cast<double>(softmax_term(x, top));
    }
    // Only a row without numbers left has a NaN on top, and then there is no sum either.
    weights[k] = std::isnan(top) ? 0.0F : 1.0F / static_cast<float>(sum);
    left[ids[k]] = kPicked;
  }
}

}  // namespace

void weigh_chosen(const Rule& rule, const Row& row, const std::int32_t* ids, float* weights, float* scratch) noexcept {
  const std::int64_t k = rule.top_k;
  if (rule.routing.method == RoutingMethod::sparsemixer) return weigh_sparsemixer(rule, row, ids, weights, scratch);
  if (!rule.ranks_logits()) {
    for (std::int64_t i = 0; i < k; ++i) weights[i] = is_expert(rule, ids[i]) ? row.scores[ids[i]] : 0.0F;
    return;
  }
  // An empty slot takes part in nothing, which is what a NaN logit does.
  for (std::int64_t i = 0; i < k; ++i)
    scratch[i] = is_expert(rule, ids[i]) ? row.logits[ids[i]] : std::numeric_limits<float>::quiet_NaN();
  score(rule.routing.scoring, scratch, k, weights);
}

void renormalize_and_scale(const Rule& rule, float* weights) noexcept {
  const std::int64_t k = rule.top_k;
  if (rule.routing.renormalize != Renormalize::none) {
    float sum = 0;
    for (std::int64_t i = 0; i < k; ++i) sum += weights[i];
    const bool adds = rule.routing.renormalize == Renormalize::sum_plus_epsilon;
    float divisor = adds ? sum + rule.epsilon : std::max(sum, rule.epsilon);
    if (std::isinf(sum)) {  // Infinite weights share the whole; inf / inf would be NaN.
      for (std::int64_t i = 0; i < k; ++i) weights[i] = weights[i] == sum ? 1.0F : 0.0F;
      divisor = 0;
      for (std::int64_t i = 0; i < k; ++i) divisor += weights[i];
    }
    for (std::int64_t i = 0; i < k; ++i) weights[i] = divisor == 0.0F ? 0.0F : weights[i] / divisor;
  }
  if (rule.factor == 1.0F) return;
  for (std::int64_t i = 0; i < k; ++i) weights[i] *= rule.factor;
}

void append_shared(const Rule& rule, std::int32_t* ids, float* weights) noexcept {
  for (std::int64_t i = rule.top_k; i < rule.num_slots; ++i) {
    ids[i] = static_cast<std::int32_t>(rule.num_experts + (i - rule.top_k));
    weights[i] = rule.shared_weight;
  }
}

}  // namespace conclave::router
