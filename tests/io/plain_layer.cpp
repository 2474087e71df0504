// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// See the header. Loops, no cleverness.
#include "io/plain_layer.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace conclave::test {
namespace {

using Row = std::vector<double>;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

Row softmax(const Row& x) {
  const double top = *std::max_element(x.begin(), x.end());
  Row out;
  double sum = 0;
  for (double v : x) sum += out.emplace_back(std::exp(v - top));
  for (double& v : out) v /= sum;
  return out;
}

Row scores_of(Scoring scoring, const Row& x) {
  if (scoring == Scoring::softmax) return softmax(x);
  Row out;
  for (double v : x)
    out.push_back(scoring == Scoring::sigmoid         ? sigmoid(v)
                  : scoring == Scoring::sqrt_softplus ? std::sqrt(std::log1p(std::exp(v)))
                                                      : v);
  return out;
}

std::vector<int> best(const Row& values, std::int64_t count) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
  });
  order.resize(static_cast<std::size_t>(count));
  return order;
}

void keep_best_groups(const RoutingConfig& r, Row& choice) {
  if (r.num_expert_group <= 1) return;
  const std::size_t size = choice.size() / static_cast<std::size_t>(r.num_expert_group);
  Row group_scores;
  for (std::size_t g = 0; g < choice.size() / size; ++g) {
    Row members(choice.begin() + static_cast<std::ptrdiff_t>(g * size),
                choice.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
    std::sort(members.rbegin(), members.rend());
    group_scores.push_back(r.group_score == GroupScore::max ? members[0] : members[0] + members[1]);
  }
  const std::vector<int> kept = best(group_scores, r.topk_group);
  for (std::size_t e = 0; e < choice.size(); ++e)
    if (std::find(kept.begin(), kept.end(), static_cast<int>(e / size)) == kept.end()) choice[e] = -kInfinity;
}

/// One pick of the sparse mixer: the best of `open`, weighed against those of `open` that are near it.
int mixer_pick(const Row& logits, const Row& open, double jitter, double& weight) {
  const int pick = best(open, 1)[0];
  const double top = open[static_cast<std::size_t>(pick)];
  Row near = open;
  for (std::size_t e = 0; e < near.size(); ++e)
    if ((top - logits[e]) / std::max(std::abs(logits[e]), top) > 2 * jitter) near[e] = -kInfinity;
  weight = softmax(near)[static_cast<std::size_t>(pick)];
  return pick;
}

void route(const MoeConfig& moe, const LayerWeights& w, const Row& logits, std::vector<int>& ids, Row& weights) {
  const RoutingConfig& r = moe.routing;
  if (r.method == RoutingMethod::sparsemixer) {
    Row open = logits;
    for (std::int64_t k = 0; k < moe.top_k; ++k) {
      weights.push_back(0);
      ids.push_back(mixer_pick(logits, open, r.sparsemixer_jitter, weights.back()));
      open[static_cast<std::size_t>(ids.back())] = -kInfinity;
    }
    return;
  }
  const Row scores = r.score_after_topk ? logits : scores_of(r.scoring, logits);
  Row choice = scores;
  if (r.has_bias)
    for (std::size_t e = 0; e < choice.size(); ++e)
      choice[e] += element(*w.e_score_correction_bias, static_cast<std::int64_t>(e));
  keep_best_groups(r, choice);
  ids = best(choice, moe.top_k);
  for (int id : ids) weights.push_back(scores[static_cast<std::size_t>(id)]);
  if (r.score_after_topk) weights = scores_of(r.scoring, weights);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& v : weights) {
    if (r.renormalize == Renormalize::sum_plus_epsilon) v /= sum + r.epsilon;
    if (r.renormalize == Renormalize::max_epsilon) v /= std::max(sum, r.epsilon);
    v *= r.routed_scaling_factor;
  }
}

/// matrix [rows, cols] times x.
Row times(const ConstTensorView& matrix, const Row& x) {
  Row out(static_cast<std::size_t>(matrix.size(0)));
  for (std::int64_t r = 0; r < matrix.size(0); ++r)
    for (std::int64_t c = 0; c < matrix.size(1); ++c)
      out[static_cast<std::size_t>(r)] += element(matrix, r * matrix.size(1) + c) * x[static_cast<std::size_t>(c)];
  return out;
}

double activate(Activation activation, const ActivationParams& p, double g, double u) {
  switch (activation) {
    case Activation::silu:
      return g * sigmoid(g) * u;
    case Activation::gelu:
      return 0.5 * g * (1 + std::erf(g / std::sqrt(2.0))) * u;
    case Activation::gelu_tanh:
      return 0.5 * g * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (g + 0.044715 * g * g * g))) * u;
    case Activation::relu2_no_mul:
      return std::max(g, 0.0) * std::max(g, 0.0);
    case Activation::silu_no_mul:
      return g * sigmoid(g);
    case Activation::swigluoai: {
      const double limited = std::min(g, *p.limit);
      return (std::clamp(u, -*p.limit, *p.limit) + 1) * limited * sigmoid(*p.alpha * limited);
    }
    default:
      throw std::logic_error("activation not written down here");
  }
}

Row inner(const MoeConfig& moe, const Row& h) {
  if (!is_gated(moe.activation)) {
    Row out;
    for (double v : h) out.push_back(activate(moe.activation, moe.activation_params, v, 0));
    return out;
  }
  const std::size_t n = h.size() / 2;
  Row out(n);
  for (std::size_t i = 0; i < n; ++i) {
    const bool interleaved = moe.w13_layout == W13Layout::interleaved;
    const double gate = interleaved ? h[2 * i] : h[i];
    const double up = interleaved ? h[2 * i + 1] : h[n + i];
    out[i] = activate(moe.activation, moe.activation_params, gate, up);
  }
  return out;
}

void add_bias(const std::optional<ConstTensorView>& bias, std::int64_t expert, Row& x) {
  if (!bias) return;
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] += element(*bias, expert * bias->size(1) + static_cast<std::int64_t>(i));
}

Row expert(const MoeConfig& moe, const ExpertWeights& w, std::int64_t e, const Row& x) {
  Row h = times(w.w13.at(e), x);
  add_bias(w.w13_bias, e, h);
  Row y = times(w.w2.at(e), inner(moe, h));
  add_bias(w.w2_bias, e, y);
  return y;
}

void add(double factor, const Row& x, Row& sum) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += factor * x[i];
}

Row layer_row(const MoeConfig& moe, const LayerWeights& w, const Row& x, const std::vector<int>& ids,
              const Row& weights) {
  const Row narrow = w.latent_in ? times(*w.latent_in, x) : x;
  Row routed(narrow.size());
  for (std::size_t k = 0; k < ids.size(); ++k) {
    if (ids[k] >= moe.num_weight_experts()) {
      add(weights[k], narrow, routed);
      continue;
    }
    Row in = narrow;
    if (moe.apply_router_weight_on_input)
      for (double& v : in) v *= weights[k];
    add(moe.apply_router_weight_on_input ? 1.0 : weights[k], expert(moe, w.experts, ids[k], in), routed);
  }
  Row out = w.latent_out ? times(*w.latent_out, routed) : routed;
  if (w.shared_w13) {
    const Row shared = times(*w.shared_w2, inner(moe, times(*w.shared_w13, x)));
    double gate = 0;
    if (w.shared_gate)
      for (std::size_t i = 0; i < x.size(); ++i) gate += element(*w.shared_gate, static_cast<std::int64_t>(i)) * x[i];
    add(w.shared_gate ? sigmoid(gate) : 1.0, shared, out);
  }
  return out;
}

}  // namespace

double element(const ConstTensorView& view, std::int64_t index) {
  if (view.dtype == DType::f32) return view.as<float>()[index];
  if (view.dtype == DType::bf16)
    return std::bit_cast<float>(static_cast<std::uint32_t>(view.as<std::uint16_t>()[index]) << 16);
  if (view.dtype == DType::f16) {
    const int bits = view.as<std::uint16_t>()[index], exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 31) throw std::logic_error("element: no finite number");
    const double size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25);
    return (bits & 0x8000) != 0 ? -size : size;
  }
  throw std::logic_error("element: dtype not written down here");
}

PlainResult plain_layer(const MoeConfig& moe, const LayerWeights& weights, const float* hidden_states,
                        std::int64_t num_tokens) {
  PlainResult result;
  for (std::int64_t m = 0; m < num_tokens; ++m) {
    const float* row = hidden_states + m * moe.hidden_size;
    const Row x(row, row + moe.hidden_size);
    Row logits = times(*weights.router_weight, x);
    if (weights.router_bias)
      for (std::size_t e = 0; e < logits.size(); ++e)
        logits[e] += element(*weights.router_bias, static_cast<std::int64_t>(e));
    std::vector<int> ids;
    Row w;
    route(moe, weights, logits, ids, w);
    const Row out = layer_row(moe, weights, x, ids, w);
    result.output.insert(result.output.end(), out.begin(), out.end());
    result.ids.push_back(ids);
    result.weights.push_back(w);
  }
  return result;
}

}  // namespace conclave::test
