// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A layer with random weights, run with a poisoned and locked workspace, and the same layer in double.
#pragma once

#include <optional>
#include <vector>

#include "conclave/layer.hpp"
#include "kernel/problems.hpp"
#include "support/oracle.hpp"
#include "support/tensors.hpp"

namespace conclave::test {

/// Tensors behind a LayerWeights of `problem`; every member that the config asks for.
struct LayerTensors {
  Tensor w13, w2, w13_bias, w2_bias, router, bias, shared_w13, shared_w2, shared_gate, latent_in, latent_out;
  LayerWeights weights;
};

inline LayerTensors random_layer(const Problem& problem, std::uint64_t seed) {
  const MoeConfig& c = problem.moe;
  const DType dtype = c.weight_dtype;
  const std::int64_t experts = c.num_weight_experts();
  const std::int64_t width = c.expert_width();
  const std::int64_t rows = w13_rows(is_gated(c.activation), c.intermediate_size);
  const auto scale = [](std::int64_t fan_in) { return 1.0 / std::sqrt(static_cast<double>(fan_in)); };
  LayerTensors t;
  t.w13 = random_tensor(dtype, {experts, rows, width}, seed + 1, scale(width));
  t.w2 = random_tensor(dtype, {experts, width, c.intermediate_size}, seed + 2, scale(c.intermediate_size));
  t.router = random_tensor(dtype, {c.num_experts, c.hidden_size}, seed + 3, scale(c.hidden_size));
  t.weights.experts.w13 = t.w13;
  t.weights.experts.w2 = t.w2;
  t.weights.router_weight = t.router;
  if (c.has_w13_bias) t.weights.experts.w13_bias = t.w13_bias = random_tensor(dtype, {experts, rows}, seed + 4, 0.5);
  if (c.has_w2_bias) t.weights.experts.w2_bias = t.w2_bias = random_tensor(dtype, {experts, width}, seed + 5, 0.5);
  if (c.routing.has_bias)
    t.weights.e_score_correction_bias = t.bias = random_tensor(DType::f32, {c.num_experts}, seed + 6, 0.1);
  if (const std::int64_t inner = c.shared.intermediate_size; inner > 0) {
    const std::int64_t shared_rows = w13_rows(is_gated(c.activation), inner);
    t.weights.shared_w13 = t.shared_w13 =
        random_tensor(dtype, {shared_rows, c.hidden_size}, seed + 7, scale(c.hidden_size));
    t.weights.shared_w2 = t.shared_w2 = random_tensor(dtype, {c.hidden_size, inner}, seed + 8, scale(inner));
    if (c.shared.sigmoid_gate)
      t.weights.shared_gate = t.shared_gate = random_tensor(dtype, {c.hidden_size}, seed + 9, scale(c.hidden_size));
  }
  if (c.latent_size > 0) {
    t.weights.latent_in = t.latent_in = random_tensor(dtype, {width, c.hidden_size}, seed + 10, scale(c.hidden_size));
    t.weights.latent_out = t.latent_out = random_tensor(dtype, {c.hidden_size, width}, seed + 11, scale(width));
  }
  return t;
}

struct LayerRun {
  Tensor output, topk_ids, topk_weights;
};

inline LayerRun run_layer(MoeLayer& layer, const ConstTensorView& hidden_states) {
  const MoeConfig& c = layer.plan().problem.moe;
  const std::int64_t m = hidden_states.size(0);
  auto executor = make_executor(2);
  LayerRun r{poisoned_tensor(c.dtype, {m, c.hidden_size}), poisoned_tensor(DType::i32, {m, c.num_slots()}),
             poisoned_tensor(DType::f32, {m, c.num_slots()})};
  Workspace workspace;
  workspace.region({}, layer.plan().workspace_bytes);
  workspace.poison();
  workspace.lock();
  LayerInput input;
  input.hidden_states = hidden_states;
  input.captured = Routing{r.topk_ids, r.topk_weights};
  layer.run(input, r.output, workspace, Stream::cpu(*executor));
  return r;
}

inline std::vector<double> matvec(const ConstTensorView& w, const std::vector<double>& x) {
  std::vector<double> out;
  for (std::int64_t n = 0; n < w.size(0); ++n) {
    double sum = 0;
    for (std::int64_t k = 0; k < w.size(1); ++k) sum += at(w, {n, k}) * x[static_cast<std::size_t>(k)];
    out.push_back(sum);
  }
  return out;
}

/// One token of the whole layer in double, given what the router chose.
inline std::vector<double> oracle_token(const MoeConfig& c, const LayerWeights& w, const std::vector<double>& x,
                                        const ConstTensorView& ids, const ConstTensorView& weights) {
  const auto hidden = static_cast<std::size_t>(c.hidden_size);
  const std::vector<double> inner = w.latent_in ? matvec(*w.latent_in, x) : x;
  std::vector<double> routed(inner.size(), 0.0);
  double zero_weight = 0;
  for (std::int64_t j = 0; j < ids.size(0); ++j) {
    const auto id = static_cast<std::int64_t>(at(ids, {j}));
    const double weight = at(weights, {j});
    if (c.zero_experts > 0 && id >= c.num_experts - c.zero_experts) {
      zero_weight += weight;
      continue;
    }
    std::vector<double> row = inner;
    if (c.apply_router_weight_on_input)
      for (double& v : row) v *= weight;
    row = oracle_expert(c, w.experts, id, row);
    for (std::size_t h = 0; h < row.size(); ++h) routed[h] += (c.apply_router_weight_on_input ? 1.0 : weight) * row[h];
  }
  if (w.latent_out) routed = matvec(*w.latent_out, routed);
  std::vector<double> out(hidden, 0.0);
  const double factor = c.routed_scale_on_output ? c.routing.routed_scaling_factor : 1.0;
  for (std::size_t h = 0; h < hidden; ++h) out[h] = factor * routed[h] + zero_weight * x[h];
  if (!w.shared_w13) return out;
  MoeConfig shared = c;
  shared.latent_size = 0;
  shared.intermediate_size = c.shared.intermediate_size;
  ExpertWeights one;
  one.w13 = ConstTensorView(w.shared_w13->data, w.shared_w13->dtype, {1, w.shared_w13->size(0), c.hidden_size});
  one.w2 = ConstTensorView(w.shared_w2->data, w.shared_w2->dtype, {1, c.hidden_size, c.shared.intermediate_size});
  const std::vector<double> row = oracle_expert(shared, one, 0, x);
  double gate = 1.0;
  if (w.shared_gate) {
    double logit = 0;
    for (std::size_t h = 0; h < hidden; ++h) logit += x[h] * at(*w.shared_gate, {static_cast<std::int64_t>(h)});
    gate = logistic(logit);
  }
  for (std::size_t h = 0; h < hidden; ++h) out[h] += gate * row[h];
  return out;
}

inline std::vector<double> oracle_layer(const MoeConfig& c, const LayerWeights& w, const ConstTensorView& x,
                                        const LayerRun& run) {
  std::vector<double> all;
  for (std::int64_t m = 0; m < x.size(0); ++m) {
    const std::vector<double> row =
        oracle_token(c, w, row_of(x, m), ConstTensorView(run.topk_ids).at(m), ConstTensorView(run.topk_weights).at(m));
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

}  // namespace conclave::test
