// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: scores of a row. Out: the top-k by partial selection over integer keys; rows are shared over all threads.
#include <algorithm>
#include <memory>

#include "conclave/registry.hpp"
#include "router/row_router.hpp"
#include "router/score.hpp"
#include "router/supports.hpp"

namespace conclave {
namespace router {
namespace {

class TopkRouter final : public RowRouter {
 public:
  using RowRouter::RowRouter;

 private:
  void choose(const Rule& rule, const Row& row, const RowScratch& scratch, std::int32_t* ids) const noexcept override {
    float* choice = scratch.values;  // Free until the weights are computed.
    for (std::int64_t e = 0; e < rule.num_experts; ++e) {
      choice[e] = choice_value(row.scores[e], row.logits[e], row.bias, e);
      scratch.keys[e] = selection_key(choice[e], e);
    }
    if (rule.has_groups()) mask_groups(rule, choice, scratch);
    select_largest(scratch.keys, rule.num_experts, rule.top_k);
    for (std::int64_t k = 0; k < rule.top_k; ++k) ids[k] = index_of(scratch.keys[k]);
  }

  /// Keys of experts outside the best groups go below those of every number inside. Uses up `choice`.
  static void mask_groups(const Rule& rule, float* choice, const RowScratch& scratch) noexcept {
    const std::int64_t size = rule.group_size(), groups = rule.routing.num_expert_group;
    for (std::int64_t g = 0; g < groups; ++g)
      scratch.groups[g] = selection_key(group_score(rule, choice + g * size), g);
    select_largest(scratch.groups, groups, rule.routing.topk_group);
    float* wins = choice;
    for (std::int64_t g = 0; g < groups; ++g) wins[g] = 0;
    for (std::int64_t i = 0; i < rule.routing.topk_group; ++i) wins[index_of(scratch.groups[i])] = 1;
    for (std::int64_t g = 0; g < groups; ++g) {
      if (wins[g] != 0) continue;
      for (std::int64_t e = g * size; e < (g + 1) * size; ++e)
        if (rank_of(scratch.keys[e]) != kNanRank) scratch.keys[e] = selection_key(kMaskedRank, e);
    }
  }

  /// NaN if the group has no number at all; a second best that is missing counts as -inf.
  static float group_score(const Rule& rule, const float* group) noexcept {
    float best = -kInfinity, second = -kInfinity;
    bool any = false;
    for (std::int64_t i = 0; i < rule.group_size(); ++i) {
      const bool number = !std::isnan(group[i]);
      const float c = number ? group[i] : -kInfinity;
      any = any || number;
      // Without a branch on which is larger: that is as good as random.
      const float lower = c < best ? c : best;
      best = c > best ? c : best;
      second = lower > second ? lower : second;
    }
    if (!any) return std::numeric_limits<float>::quiet_NaN();
    const bool one = rule.routing.group_score == GroupScore::max || rule.group_size() == 1;
    return one ? best : top2_sum(best, second);
  }
};

}  // namespace
}  // namespace router

namespace parts {

Entry<Router> router_cpu_topk();
Entry<Router> router_cpu_topk() {
  const std::string name = "router/cpu_topk";
  return {.name = name,
          .supports = router::supports_rule,
          .make = [name](const PartContext& context) -> std::unique_ptr<Router> {
            return std::make_unique<router::TopkRouter>(name, context.problem,
                                                        std::max(1, context.problem.device.num_threads));
          }};
}

}  // namespace parts
}  // namespace conclave
