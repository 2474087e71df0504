// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The MoE layer as three loops in double, from the formulas of include/conclave/activation.hpp and nothing else of the
// library. In: config, input, weights, routing. Out: rows [M, k, H] or the reduced output [M, H].
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "conclave/config.hpp"
#include "conclave/weights.hpp"
#include "support/tensors.hpp"

namespace conclave::test {

inline double logistic(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}
inline double gelu_exact(double x) {
  return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0)));
}
inline double gelu_approximate(double x) {
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

/// `g` is the gate, `u` the up value; non-gated activations take g alone.
inline double oracle_activation(const MoeConfig& moe, double g, double u) {
  const ActivationParams& p = moe.activation_params;
  const auto both = [](double x, double limit) { return std::max(-limit, std::min(x, limit)); };
  switch (moe.activation) {
    case Activation::silu: {
      const double limit = p.limit.value_or(INFINITY);
      const double gate = std::min(g, limit);
      return gate * logistic(gate) * both(u, limit);
    }
    case Activation::gelu:
      return gelu_exact(g) * u;
    case Activation::gelu_tanh:
      return gelu_approximate(g) * u;
    case Activation::relu2:
      return std::pow(std::max(g, 0.0), 2) * u;
    case Activation::swigluoai: {
      const double limit = p.limit.value_or(7.0);
      const double gate = std::min(g, limit);
      return (both(u, limit) + 1.0) * gate * logistic(p.alpha.value_or(1.702) * gate);
    }
    case Activation::swigluoai_uninterleave: {
      const double gate = std::min(g, *p.limit);
      return gate * logistic(p.alpha.value_or(1.0) * gate) * (both(u, *p.limit) + p.beta.value_or(0.0));
    }
    case Activation::swiglustep: {
      const double limit = p.limit.value_or(7.0);
      return std::min(g * logistic(g), limit) * both(u, limit);
    }
    case Activation::situ: {
      const double lb = p.linear_beta.value_or(0.0);
      return *p.beta * std::tanh(g / *p.beta) * logistic(g) * (lb > 0 ? lb * std::tanh(u / lb) : u);
    }
    case Activation::silu_no_mul:
      return g * logistic(g);
    case Activation::gelu_no_mul:
      return gelu_exact(g);
    case Activation::gelu_tanh_no_mul:
      return gelu_approximate(g);
    case Activation::relu2_no_mul:
      return std::pow(std::max(g, 0.0), 2);
  }
  return NAN;
}

/// One expert applied to one row of hidden_size values.
inline std::vector<double> oracle_expert(const MoeConfig& moe, const ExpertWeights& w, std::int64_t expert,
                                         const std::vector<double>& x) {
  const std::int64_t hidden = moe.expert_width();
  const std::int64_t inner = moe.intermediate_size;
  const auto first_product = [&](std::int64_t row) {
    double sum = w.w13_bias ? at(*w.w13_bias, {expert, row}) : 0.0;
    for (std::int64_t h = 0; h < hidden; ++h) sum += at(w.w13, {expert, row, h}) * x[static_cast<std::size_t>(h)];
    return sum;
  };
  std::vector<double> inner_row;
  for (std::int64_t i = 0; i < inner; ++i) {
    if (!is_gated(moe.activation)) {
      inner_row.push_back(oracle_activation(moe, first_product(i), 0.0));
    } else if (moe.w13_layout == W13Layout::gate_up) {
      inner_row.push_back(oracle_activation(moe, first_product(i), first_product(inner + i)));
    } else if (moe.w13_layout == W13Layout::up_gate) {
      inner_row.push_back(oracle_activation(moe, first_product(inner + i), first_product(i)));
    } else {
      inner_row.push_back(oracle_activation(moe, first_product(2 * i), first_product(2 * i + 1)));
    }
  }
  std::vector<double> out;
  for (std::int64_t h = 0; h < hidden; ++h) {
    double sum = w.w2_bias ? at(*w.w2_bias, {expert, h}) : 0.0;
    for (std::int64_t i = 0; i < inner; ++i) sum += at(w.w2, {expert, h, i}) * inner_row[static_cast<std::size_t>(i)];
    out.push_back(sum);
  }
  return out;
}

/// Local slot of (token, pick), or -1 where the id is empty, out of range or remote.
inline std::int64_t oracle_slot(const ExpertWeights& w, const ConstTensorView& ids,
                                const std::optional<ConstTensorView>& expert_map, std::int64_t m, std::int64_t j) {
  const auto id = static_cast<std::int64_t>(at(ids, {m, j}));
  const std::int64_t bound = expert_map ? expert_map->size(0) : w.num_local_experts();
  if (id < 0 || id >= bound) return -1;
  return expert_map ? static_cast<std::int64_t>(at(*expert_map, {id})) : id;
}

inline std::vector<double> row_of(const ConstTensorView& matrix, std::int64_t m) {
  return values(matrix.at(m));
}

/// [M, k, H] flattened: unweighted rows, zeros where there is no local expert.
inline std::vector<double> oracle_rows(const MoeConfig& moe, const ConstTensorView& hidden_states,
                                       const ExpertWeights& w, const ConstTensorView& ids,
                                       const std::optional<ConstTensorView>& expert_map = {}) {
  std::vector<double> out;
  for (std::int64_t m = 0; m < ids.size(0); ++m)
    for (std::int64_t j = 0; j < ids.size(1); ++j) {
      const std::int64_t slot = oracle_slot(w, ids, expert_map, m, j);
      const std::vector<double> row = slot < 0 ? std::vector<double>(static_cast<std::size_t>(moe.expert_width()), 0.0)
                                               : oracle_expert(moe, w, slot, row_of(hidden_states, m));
      out.insert(out.end(), row.begin(), row.end());
    }
  return out;
}

/// [M, H] flattened: the routed output, weights on the input or on the output as the config says.
inline std::vector<double> oracle_moe(const MoeConfig& moe, const ConstTensorView& hidden_states,
                                      const ExpertWeights& w, const ConstTensorView& ids,
                                      const ConstTensorView& topk_weights,
                                      const std::optional<ConstTensorView>& expert_map = {}) {
  const auto hidden = static_cast<std::size_t>(moe.expert_width());
  std::vector<double> out(static_cast<std::size_t>(ids.size(0)) * hidden, 0.0);
  for (std::int64_t m = 0; m < ids.size(0); ++m)
    for (std::int64_t j = 0; j < ids.size(1); ++j) {
      const std::int64_t slot = oracle_slot(w, ids, expert_map, m, j);
      const double weight = at(topk_weights, {m, j});
      if (slot < 0 || (weight == 0.0 && !moe.apply_router_weight_on_input)) continue;
      std::vector<double> x = row_of(hidden_states, m);
      if (moe.apply_router_weight_on_input)
        for (double& v : x) v *= weight;
      const std::vector<double> row = oracle_expert(moe, w, slot, x);
      const double factor = moe.apply_router_weight_on_input ? 1.0 : weight;
      for (std::size_t h = 0; h < hidden; ++h) out[static_cast<std::size_t>(m) * hidden + h] += factor * row[h];
    }
  return out;
}

}  // namespace conclave::test
