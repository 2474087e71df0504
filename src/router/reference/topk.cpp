// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: scores of a row. Out: the top-k by sorting all experts; one thread, nothing clever.
#include <algorithm>
#include <memory>
#include <numeric>

#include "conclave/registry.hpp"
#include "router/row_router.hpp"
#include "router/score.hpp"
#include "router/supports.hpp"

namespace conclave {
namespace router {
namespace {

/// What an expert or a group is ordered by.
struct Place {
  bool is_number = false;
  bool masked = false;
  float value = 0;
};

/// a goes before b: numbers before NaN, open groups before masked ones, larger first, then the lower index.
bool goes_before(const Place& a, std::int64_t index_a, const Place& b, std::int64_t index_b) {
  if (a.is_number != b.is_number) return a.is_number;
  if (a.is_number && a.masked != b.masked) return b.masked;
  if (a.is_number && !a.masked && a.value != b.value) return a.value > b.value;
  return index_a < index_b;
}

class ReferenceRouter final : public RowRouter {
 public:
  using RowRouter::RowRouter;

 private:
  void choose(const Rule& rule, const Row& row, const RowScratch& scratch, std::int32_t* ids) const noexcept override {
    SelectionKey* order = scratch.keys;  // Here plain indices.
    std::iota(order, order + rule.num_experts, SelectionKey{0});
    if (rule.has_groups()) sort_groups(rule, row, scratch);
    const auto place = [&](std::int64_t e) {
      const float c = choice_value(row.scores[e], row.logits[e], row.bias, e);
      return Place{!std::isnan(c), rule.has_groups() && !is_open(rule, scratch, e / rule.group_size()), c};
    };
    std::sort(order, order + rule.num_experts, [&](SelectionKey a, SelectionKey b) {
      const auto x = static_cast<std::int64_t>(a), y = static_cast<std::int64_t>(b);
      return goes_before(place(x), x, place(y), y);
    });
    for (std::int64_t k = 0; k < rule.top_k; ++k) ids[k] = static_cast<std::int32_t>(order[k]);
  }

  static void sort_groups(const Rule& rule, const Row& row, const RowScratch& scratch) noexcept {
    const std::int64_t groups = rule.routing.num_expert_group;
    std::iota(scratch.groups, scratch.groups + groups, SelectionKey{0});
    std::sort(scratch.groups, scratch.groups + groups, [&](SelectionKey a, SelectionKey b) {
      const auto x = static_cast<std::int64_t>(a), y = static_cast<std::int64_t>(b);
      return goes_before(group_place(rule, row, x), x, group_place(rule, row, y), y);
    });
  }

  static bool is_open(const Rule& rule, const RowScratch& scratch, std::int64_t group) noexcept {
    const SelectionKey* end = scratch.groups + rule.routing.topk_group;
    return std::find(static_cast<const SelectionKey*>(scratch.groups), end, static_cast<SelectionKey>(group)) != end;
  }

  /// The best number of the group, or the sum of its best two, where a missing one counts as -inf.
  static Place group_place(const Rule& rule, const Row& row, std::int64_t group) noexcept {
    const std::int64_t size = rule.group_size();
    Place best, second;
    for (std::int64_t e = group * size; e < (group + 1) * size; ++e) {
      const float c = choice_value(row.scores[e], row.logits[e], row.bias, e);
      if (std::isnan(c)) continue;
      if (!best.is_number || c > best.value) {
        second = best;
        best = {true, false, c};
      } else if (!second.is_number || c > second.value) {
        second = {true, false, c};
      }
    }
    if (!best.is_number || rule.routing.group_score == GroupScore::max || size == 1) return best;
    return {true, false, top2_sum(best.value, second.is_number ? second.value : -kInfinity)};
  }
};

}  // namespace
}  // namespace router

namespace parts {

Entry<Router> router_reference_topk();
Entry<Router> router_reference_topk() {
  const std::string name = "router/reference_topk";
  return {.name = name,
          .supports = router::supports_rule,
          .make = [name](const PartContext& context) -> std::unique_ptr<Router> {
            return std::make_unique<router::ReferenceRouter>(name, context.problem, 1);
          }};
}

}  // namespace parts
}  // namespace conclave
