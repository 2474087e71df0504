// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: logits and a routing rule. Out: ids and weights, by sorting everything, in f64.
#include "verify/oracle_routing.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.hpp"
#include "verify/element.hpp"

namespace conclave::verify_detail {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
using Values = std::vector<double>;
using Indices = std::vector<std::int64_t>;

double at(std::span<const double> v, std::int64_t i) {
  return v[static_cast<std::size_t>(i)];
}

/// NaN counts as minus infinity everywhere, and so weighs nothing and is chosen last.
Values without_nan(std::span<const double> x) {
  Values y(x.begin(), x.end());
  for (double& v : y)
    if (std::isnan(v)) v = kMinusInfinity;
  return y;
}

void softmax(Values& x) {
  const double top = x.empty() ? 0 : *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (double& v : x) sum += v = v == kMinusInfinity ? 0 : std::exp(v - top);
  for (double& v : x) v = sum > 0 ? v / sum : 0;
}

void score(Scoring scoring, Values& x) {
  switch (scoring) {
    case Scoring::softmax:
      softmax(x);
      return;
    case Scoring::sigmoid:
      for (double& v : x) v = 1 / (1 + std::exp(-v));
      return;
    case Scoring::sqrt_softplus:
      for (double& v : x) v = std::sqrt(std::max(v, 0.0) + std::log1p(std::exp(-std::fabs(v))));
      return;
    case Scoring::logits:
      return;
  }
}

double distance(double a, double b) {
  if (a == b || !std::isfinite(a) || !std::isfinite(b)) return 1;
  // The floor: score + bias may cancel, and then the rounding of the terms counts, not that of the sum.
  return std::fabs(a - b) / std::max({std::fabs(a), std::fabs(b), 1e-2});
}

/// Indices of the `count` largest, equal values in index order. Lowers `margin` to the closest decision.
Indices largest(std::span<const double> values, std::int64_t count, double& margin) {
  Indices order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return at(values, a) > at(values, b); });
  for (std::int64_t i = 0; i < count && i + 1 < static_cast<std::int64_t>(order.size()); ++i) {
    const auto here = order.begin() + i;
    margin = std::min(margin, distance(at(values, *here), at(values, *(here + 1))));
  }
  order.resize(static_cast<std::size_t>(count));
  return order;
}

double group_score(GroupScore kind, std::span<const double> group) {
  double unused = 1;
  const std::int64_t count = kind == GroupScore::max ? 1 : std::min<std::int64_t>(2, std::ssize(group));
  double sum = 0;
  for (const std::int64_t i : largest(group, count, unused)) sum += at(group, i);
  return sum;
}

/// Choice values of experts outside the best groups become minus infinity.
void mask_groups(const RoutingConfig& r, Values& choice, double& margin) {
  if (r.num_expert_group <= 1) return;
  const std::size_t size = choice.size() / static_cast<std::size_t>(r.num_expert_group);
  Values scores;
  for (std::size_t g = 0; g < static_cast<std::size_t>(r.num_expert_group); ++g)
    scores.push_back(group_score(r.group_score, std::span(choice).subspan(g * size, size)));
  const Indices kept = largest(scores, r.topk_group, margin);
  for (std::size_t e = 0; e < choice.size(); ++e)
    if (std::find(kept.begin(), kept.end(), static_cast<std::int64_t>(e / size)) == kept.end())
      choice[e] = kMinusInfinity;
}

void renormalize(const RoutingConfig& r, Values& weights) {
  if (r.renormalize == Renormalize::none) return;
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double divisor = r.renormalize == Renormalize::sum_plus_epsilon ? sum + r.epsilon : std::max(sum, r.epsilon);
  for (double& w : weights) w = divisor == 0 ? 0 : w / divisor;
}

/// PhiMoE: one pick after the other; each is weighed among the experts that are left and whose logit is near its own.
RowChoice sparsemixer(const MoeConfig& moe, const Values& x) {
  RowChoice row;
  const double jitter = 2 * moe.routing.sparsemixer_jitter;
  std::vector<bool> taken(x.size(), false);
  for (const std::int64_t best : largest(x, moe.top_k, row.margin)) {
    const double top = at(x, best);
    Values near = x;
    for (std::size_t e = 0; e < x.size(); ++e) {
      const double away = (top - x[e]) / std::max(std::fabs(x[e]), top);
      if (!taken[e] && x[e] != top && std::isfinite(away))
        row.margin = std::min(row.margin, std::fabs(away - jitter) / jitter);
      if (taken[e] || away > jitter) near[e] = kMinusInfinity;
    }
    softmax(near);
    row.ids.push_back(best);
    row.weights.push_back(top == kMinusInfinity ? 0 : at(near, best));
    taken[static_cast<std::size_t>(best)] = true;
  }
  return row;
}

RowChoice choose(const MoeConfig& moe, std::span<const double> logits, std::span<const double> bias,
                 std::span<const std::int64_t> table_ids) {
  const RoutingConfig& r = moe.routing;
  RowChoice row;
  Values scores = without_nan(logits);
  if (!r.score_after_topk) score(r.scoring, scores);
  Values choice = scores;
  for (std::size_t e = 0; e < bias.size(); ++e) choice[e] += bias[e];
  for (std::size_t e = 0; e < choice.size(); ++e)
    if (std::isnan(logits[e])) choice[e] = kMinusInfinity;  // Whatever its bias: NaN never goes before a number.
  mask_groups(r, choice, row.margin);
  row.ids = table_ids.empty() ? largest(choice, moe.top_k, row.margin) : Indices(table_ids.begin(), table_ids.end());
  for (const std::int64_t e : row.ids) row.weights.push_back(at(scores, e));
  if (r.score_after_topk) score(r.scoring, row.weights);
  for (std::size_t k = 0; k < row.ids.size(); ++k)
    if (std::isnan(at(logits, row.ids[k]))) row.weights[k] = 0;
  renormalize(r, row.weights);
  return row;
}

}  // namespace

RowChoice route_row(const MoeConfig& moe, std::span<const double> logits, std::span<const double> bias,
                    std::span<const std::int64_t> table_ids) {
  const RoutingConfig& r = moe.routing;
  const bool nothing = std::all_of(logits.begin(), logits.end(), [](double v) { return std::isnan(v); });
  RowChoice row;
  if (nothing) {
    row.ids.resize(static_cast<std::size_t>(moe.top_k));
    std::iota(row.ids.begin(), row.ids.end(), 0);
    row.weights.assign(row.ids.size(), 0.0);
  } else if (r.method == RoutingMethod::sparsemixer) {
    row = sparsemixer(moe, without_nan(logits));
  } else {
    row = choose(moe, logits, bias, table_ids);
  }
  if (!moe.routed_scale_on_output)
    for (double& w : row.weights) w *= r.routed_scaling_factor;
  for (std::int64_t s = 0; s < r.num_fused_shared_experts; ++s) {
    row.ids.push_back(moe.num_experts + s);
    row.weights.push_back(r.fused_shared_weight);
  }
  return row;
}

OracleRouting oracle_route(const MoeConfig& moe, const RouterInput& input) {
  OracleRouting result;
  result.num_slots = moe.num_slots();
  const Values logits = to_doubles(input.logits);
  const Values bias = input.e_score_correction_bias ? to_doubles(*input.e_score_correction_bias) : Values();
  const auto columns = static_cast<std::size_t>(moe.num_experts);
  for (std::int64_t m = 0; m < input.logits.size(0); ++m) {
    Indices table_ids;
    if (moe.routing.hash_table) {
      const auto token = static_cast<std::int64_t>(load(*input.token_ids, m * input.token_ids->stride(0)));
      for (const double id : to_doubles(input.hash_table->at(token)))
        table_ids.push_back(static_cast<std::int64_t>(id));
    }
    const RowChoice row =
        route_row(moe, std::span(logits).subspan(static_cast<std::size_t>(m) * columns, columns), bias, table_ids);
    result.ids.insert(result.ids.end(), row.ids.begin(), row.ids.end());
    result.weights.insert(result.weights.end(), row.weights.begin(), row.weights.end());
  }
  return result;
}

}  // namespace conclave::verify_detail
