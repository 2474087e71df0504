// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: hidden states, routing, weights. Out: the layer's routed sum in f64.
#include "verify/oracle.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "verify/element.hpp"
#include "verify/oracle_quant.hpp"

namespace conclave::verify_detail {
namespace {

double logistic(double x) {
  return 1 / (1 + std::exp(-x));
}

double tanh_gelu(double x) {
  const double sqrt_2_over_pi = std::sqrt(2 / std::acos(-1.0));
  return x / 2 * (1 + std::tanh(sqrt_2_over_pi * (x + 0.044715 * x * x * x)));
}

/// The function of x alone.
double unary(Activation plain, double x) {
  switch (plain) {
    case Activation::silu_no_mul:
      return x * logistic(x);
    case Activation::gelu_no_mul:
      return x / 2 * std::erfc(-x / std::sqrt(2.0));
    case Activation::gelu_tanh_no_mul:
      return tanh_gelu(x);
    case Activation::relu2_no_mul:
      return x > 0 ? x * x : 0;
    default:
      return std::numeric_limits<double>::quiet_NaN();
  }
}

double dot(const double* a, const double* b, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

/// Where row i of gate and of up lie among the 2I rows.
std::pair<std::int64_t, std::int64_t> gate_and_up_rows(W13Layout layout, std::int64_t i, std::int64_t size) {
  if (layout == W13Layout::interleaved) return {2 * i, 2 * i + 1};
  return layout == W13Layout::gate_up ? std::pair(i, size + i) : std::pair(size + i, i);
}

/// The slot of a global id on this rank, or -1: empty, out of range, or on another rank.
std::int64_t local_slot(std::int64_t id, std::int64_t num_experts, std::int64_t num_local,
                        const std::optional<ConstTensorView>& expert_map) {
  if (id < 0 || id >= num_experts) return -1;
  const std::int64_t slot = expert_map ? static_cast<std::int64_t>(load(*expert_map, id * expert_map->stride(0))) : id;
  return slot < num_local ? slot : -1;
}

/// One of the routed sum: which token, which pick, at which local expert, with which weight.
struct Term {
  std::int64_t token, slot;
  double weight;
};

/// Terms with a local expert, zero weights included, in the order of their sum.
std::vector<Term> terms_of(const MoeConfig& moe, const OracleRouting& routing, std::int64_t num_tokens,
                           std::int64_t num_local, const std::optional<ConstTensorView>& expert_map) {
  std::vector<Term> terms;
  for (std::int64_t m = 0; m < num_tokens; ++m)
    for (std::int64_t k = 0; k < routing.num_slots; ++k) {
      const auto at = static_cast<std::size_t>(m * routing.num_slots + k);
      const std::int64_t slot = local_slot(routing.ids[at], moe.num_weight_experts(), num_local, expert_map);
      if (slot >= 0) terms.push_back({m, slot, routing.weights[at]});
    }
  return terms;
}

std::vector<double> input_of(const MoeConfig& moe, const ConstTensorView& hidden_states, const Term& term) {
  std::vector<double> x = to_doubles(hidden_states.at(term.token));
  if (moe.apply_router_weight_on_input)
    for (double& v : x) v *= term.weight;
  return x;
}

/// Scales that span the batch: of all inputs, then of all values between the products.
void find_batch_scales(const MoeConfig& moe, const ConstTensorView& hidden_states, const std::vector<Term>& terms,
                       std::vector<OracleExpert>& experts) {
  if (experts.empty() || !oracle_spans_the_batch(experts[0].activations)) return;
  const QuantKey key = experts[0].activations;
  const auto largest = [&](auto row_of) {
    double amax = 0;
    for (const Term& term : terms)
      for (const double v : row_of(term)) amax = std::max(amax, std::fabs(v));
    return oracle_batch_scale(key, amax);
  };
  const double a1 = largest([&](const Term& term) { return input_of(moe, hidden_states, term); });
  const double a2 = largest([&](const Term& term) {
    std::vector<double> x = input_of(moe, hidden_states, term);
    oracle_requantise(key, x, a1);
    return experts[static_cast<std::size_t>(term.slot)].inner(moe, x);
  });
  for (OracleExpert& expert : experts) {
    expert.a1_scale = a1;
    expert.a2_scale = a2;
  }
}

/// A static scale of one expert; 1 where there is none.
double static_scale(const std::optional<ConstTensorView>& scales, std::int64_t expert) {
  if (!scales) return 1;
  return load(*scales, scales->numel() == 1 ? 0 : expert * scales->stride(0));
}

}  // namespace

double oracle_activation(Activation activation, const ActivationParams& params, double gate, double up) {
  if (!is_gated(activation)) return unary(activation, gate);
  const ActivationParams p = resolve(activation, params);
  const double limit = p.limit.value_or(std::numeric_limits<double>::infinity());
  const double low_gate = gate > limit ? limit : gate;
  const double cut_up = up > limit ? limit : up < -limit ? -limit : up;
  switch (activation) {
    case Activation::silu:
      return low_gate * logistic(low_gate) * cut_up;
    case Activation::gelu:
    case Activation::gelu_tanh:
    case Activation::relu2:
      return unary(without_mul(activation), gate) * up;
    case Activation::swigluoai:
    case Activation::swigluoai_uninterleave:
      return low_gate * logistic(*p.alpha * low_gate) * (cut_up + *p.beta);
    case Activation::swiglustep:
      return std::min(gate * logistic(gate), limit) * cut_up;
    case Activation::situ: {
      const double lb = p.linear_beta.value_or(0);
      return *p.beta * std::tanh(gate / *p.beta) * logistic(gate) * (lb > 0 ? lb * std::tanh(up / lb) : up);
    }
    default:
      return std::numeric_limits<double>::quiet_NaN();
  }
}

std::vector<double> OracleExpert::inner(const MoeConfig& moe, const std::vector<double>& x) const {
  const auto product = [&](std::int64_t row) {
    return dot(&w13[static_cast<std::size_t>(row * hidden_size)], x.data(), hidden_size) +
           (w13_bias.empty() ? 0 : w13_bias[static_cast<std::size_t>(row)]);
  };
  std::vector<double> out;
  for (std::int64_t i = 0; i < intermediate_size; ++i) {
    const auto [gate, up] =
        is_gated(moe.activation) ? gate_and_up_rows(moe.w13_layout, i, intermediate_size) : std::pair(i, i);
    out.push_back(oracle_activation(moe.activation, moe.activation_params, product(gate), product(up)));
  }
  return out;
}

std::vector<double> OracleExpert::apply(const MoeConfig& moe, const std::vector<double>& x) const {
  std::vector<double> coded = x;
  oracle_requantise(activations, coded, a1_scale);
  std::vector<double> between = inner(moe, coded);
  oracle_requantise(activations, between, a2_scale);
  std::vector<double> out;
  for (std::int64_t h = 0; h < hidden_size; ++h) {
    const double bias = w2_bias.empty() ? 0 : w2_bias[static_cast<std::size_t>(h)];
    out.push_back(dot(&w2[static_cast<std::size_t>(h * intermediate_size)], between.data(), intermediate_size) + bias);
  }
  return out;
}

std::vector<OracleExpert> oracle_experts(const ExpertWeights& weights) {
  std::vector<OracleExpert> experts;
  for (std::int64_t e = 0; e < weights.num_local_experts(); ++e) {
    OracleExpert expert;
    expert.hidden_size = weights.w2.size(1);
    expert.intermediate_size = weights.w2.size(2);
    expert.w13 = to_doubles(weights.w13.at(e));
    expert.w2 = to_doubles(weights.w2.at(e));
    if (weights.w13_bias) expert.w13_bias = to_doubles(weights.w13_bias->at(e));
    if (weights.w2_bias) expert.w2_bias = to_doubles(weights.w2_bias->at(e));
    experts.push_back(std::move(expert));
  }
  return experts;
}

std::vector<OracleExpert> oracle_experts(const Problem& problem, const ExpertWeights& weights) {
  std::vector<OracleExpert> experts = oracle_experts(weights);
  const QuantConfig& quant = problem.quant;
  for (std::int64_t e = 0; e < weights.num_local_experts(); ++e) {
    OracleExpert& expert = experts[static_cast<std::size_t>(e)];
    expert.activations = quant.activations;
    expert.a1_scale = static_scale(weights.a1_scale, e);
    expert.a2_scale = static_scale(weights.a2_scale, e);
    if (quant.weights == QuantKey::none) continue;
    expert.intermediate_size = problem.moe.intermediate_size;  // Packed columns say nothing.
    expert.w13 = oracle_dequantise(problem.moe, quant.weights, weights, e, true);
    expert.w2 = oracle_dequantise(problem.moe, quant.weights, weights, e, false);
  }
  return experts;
}

OracleOutput oracle_moe(const MoeConfig& moe, const ConstTensorView& hidden_states, const OracleRouting& routing,
                        std::vector<OracleExpert> experts, const std::optional<ConstTensorView>& expert_map) {
  const std::int64_t num_tokens = hidden_states.size(0);
  const std::int64_t width = hidden_states.size(1);
  OracleOutput result;
  result.values.assign(static_cast<std::size_t>(num_tokens * width), 0.0);
  result.row_has_local_expert.assign(static_cast<std::size_t>(num_tokens), false);
  const std::vector<Term> terms = terms_of(moe, routing, num_tokens, std::ssize(experts), expert_map);
  find_batch_scales(moe, hidden_states, terms, experts);
  const bool on_input = moe.apply_router_weight_on_input;
  for (const Term& term : terms) {
    result.row_has_local_expert[static_cast<std::size_t>(term.token)] = true;
    if (term.weight == 0 && !on_input) continue;
    const std::vector<double> y =
        experts[static_cast<std::size_t>(term.slot)].apply(moe, input_of(moe, hidden_states, term));
    for (std::int64_t h = 0; h < width; ++h)
      result.values[static_cast<std::size_t>(term.token * width + h)] +=
          (on_input ? 1 : term.weight) * y[static_cast<std::size_t>(h)];
  }
  return result;
}

}  // namespace conclave::verify_detail
