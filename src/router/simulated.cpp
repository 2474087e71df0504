// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: seed, step and row. Out: ids and weights of that row.
#include "router/simulated.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "router/random.hpp"
#include "router/score.hpp"

namespace conclave::router {
namespace {

void draw_with_repetition(const Rule& rule, RowRandom random, std::int32_t* ids, float* weights) noexcept {
  for (std::int64_t k = 0; k < rule.top_k; ++k) {
    ids[k] = static_cast<std::int32_t>(random.below(rule.num_experts));
    weights[k] = 1.0F;
  }
}

/// Hot in the middle: sigmoid of a standard normal number, stretched over the experts.
void draw_normal(const Rule& rule, RowRandom random, std::int32_t* ids, float* weights) noexcept {
  float sum = 0;
  for (std::int64_t k = 0; k < rule.top_k; ++k) {
    const double radius = std::sqrt(-2.0 * std::log(random.uniform()));  // Box-Muller
    const auto normal = static_cast<float>(radius * std::cos(2.0 * std::numbers::pi * random.uniform()));
    const auto id = static_cast<std::int64_t>(sigmoid(normal) * static_cast<float>(rule.num_experts));
    ids[k] = static_cast<std::int32_t>(std::min(id, rule.num_experts - 1));
    weights[k] = std::fabs(normal);
    sum += weights[k];
  }
  for (std::int64_t k = 0; k < rule.top_k; ++k) weights[k] = sum > 0 ? weights[k] / sum : 0.0F;
}

/// The first k of a Fisher-Yates shuffle.
void draw_distinct(const Rule& rule, RowRandom random, std::int32_t* ids, SelectionKey* deck) noexcept {
  for (std::int64_t e = 0; e < rule.num_experts; ++e) deck[e] = static_cast<SelectionKey>(e);
  for (std::int64_t k = 0; k < rule.top_k; ++k) {
    std::swap(deck[k], deck[k + random.below(rule.num_experts - k)]);
    ids[k] = static_cast<std::int32_t>(deck[k]);
  }
}

}  // namespace

Simulator::Simulator(const Rule& rule) {
  if (rule.routing.method != RoutingMethod::simulated || rule.routing.simulated != SimulatedRouting::zipf) return;
  for (std::int64_t e = 0; e < rule.num_experts; ++e)
    log_probability_.push_back(static_cast<float>(-rule.routing.zipf_exponent * std::log(static_cast<double>(e + 1))));
}

void Simulator::draw(const Rule& rule, std::uint64_t step, std::int64_t row, std::int32_t* ids, float* weights,
                     SelectionKey* keys) const noexcept {
  RowRandom random(rule.routing.seed, step, row);
  switch (rule.routing.simulated) {
    case SimulatedRouting::uniform_random:
      return draw_with_repetition(rule, random, ids, weights);
    case SimulatedRouting::normal_routing:
      return draw_normal(rule, random, ids, weights);
    case SimulatedRouting::uniform:
      draw_distinct(rule, random, ids, keys);
      break;
    case SimulatedRouting::zipf:
      // The k largest of log p + Gumbel noise are k draws from p without replacement.
      for (std::int64_t e = 0; e < rule.num_experts; ++e) {
        const double gumbel = -std::log(-std::log(random.uniform()));
        keys[e] = selection_key(log_probability_[static_cast<std::size_t>(e)] + static_cast<float>(gumbel), e);
      }
      select_largest(keys, rule.num_experts, rule.top_k);
      for (std::int64_t k = 0; k < rule.top_k; ++k) ids[k] = index_of(keys[k]);
      break;
  }
  std::fill_n(weights, rule.top_k, 1.0F / static_cast<float>(rule.top_k));
}

}  // namespace conclave::router
