// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a layer's configuration. Out: tensors for it, and its output in f64.
#include "verify/layer_data.hpp"

#include <algorithm>
#include <cmath>

#include "verify/element.hpp"
#include "verify/random.hpp"

namespace conclave::verify_detail {
namespace {

constexpr std::int64_t kVocabulary = 23;

Slab random_tensor(DType dtype, std::initializer_list<std::int64_t> shape, double scale, Random random) {
  Slab slab{Tensor(dtype, shape)};
  for_each_offset(slab.view, [&](std::int64_t offset) { store(slab.view, offset, scale * random.unit()); });
  return slab;
}

double inverse_root(std::int64_t n) {
  return 1 / std::sqrt(static_cast<double>(n));
}

/// ids[t, k] = distinct experts for each token id.
Slab make_hash_table(const MoeConfig& moe, Random random) {
  Slab table{Tensor(DType::i32, {kVocabulary, moe.top_k})};
  for (std::int64_t t = 0; t < kVocabulary; ++t) {
    const std::int64_t start = random.below(moe.num_experts);
    for (std::int64_t k = 0; k < moe.top_k; ++k)
      store(table.view, t * moe.top_k + k, static_cast<double>((start + 2 * k + k * k) % moe.num_experts));
  }
  return table;
}

/// Rows are drawn until an f32 router must choose as f64 does.
Slab make_logits(const MoeConfig& moe, const Slab* bias, std::int64_t num_tokens, Random random) {
  constexpr double kClear = 1e-5;
  Slab logits{Tensor(moe.router_logits_dtype, {num_tokens, moe.num_experts})};
  const std::vector<double> b = bias != nullptr ? to_doubles(bias->view) : std::vector<double>();
  for (std::int64_t m = 0; m < num_tokens; ++m) {
    const TensorView row = logits.view.at(m);
    for (int attempt = 0; attempt < 100; ++attempt) {
      for (std::int64_t e = 0; e < moe.num_experts; ++e) store(row, e, 1.5 * random.unit());
      if (route_row(moe, to_doubles(row), b, {}).margin > kClear) break;
    }
  }
  return logits;
}

std::optional<ConstTensorView> view_of(const std::map<std::string, Slab>& tensors, const char* name) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) return std::nullopt;
  return found->second.view;
}

std::vector<double> times(const ConstTensorView& matrix, const std::vector<double>& x) {
  std::vector<double> y;
  for (std::int64_t row = 0; row < matrix.size(0); ++row) {
    const std::vector<double> w = to_doubles(matrix.at(row));
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += w[i] * x[i];
    y.push_back(sum);
  }
  return y;
}

/// Every row of `x` [rows, width] through a matrix.
std::vector<double> project(const std::vector<double>& x, std::int64_t width, const ConstTensorView& matrix) {
  std::vector<double> y;
  for (auto row = x.begin(); row != x.end(); row += width) {
    const std::vector<double> projected = times(matrix, {row, row + width});
    y.insert(y.end(), projected.begin(), projected.end());
  }
  return y;
}

/// Zero experts out of the routing; returns the sum of their weights for each token.
std::vector<double> take_zero_experts(const MoeConfig& moe, OracleRouting& routing) {
  std::vector<double> sums(routing.ids.size() / static_cast<std::size_t>(routing.num_slots), 0.0);
  for (std::size_t i = 0; i < routing.ids.size(); ++i) {
    if (moe.zero_experts == 0 || routing.ids[i] < moe.num_experts - moe.zero_experts) continue;
    sums[i / static_cast<std::size_t>(routing.num_slots)] += routing.weights[i];
    routing.ids[i] = -1;
  }
  return sums;
}

void add_shared(const LayerData& data, std::vector<double>& output) {
  const MoeConfig& moe = data.problem.moe;
  if (moe.shared.intermediate_size == 0) return;
  OracleExpert shared;
  shared.hidden_size = moe.hidden_size;
  shared.intermediate_size = moe.shared.intermediate_size;
  shared.w13 = to_doubles(data.tensors.at("shared_w13").view);
  shared.w2 = to_doubles(data.tensors.at("shared_w2").view);
  for (std::int64_t m = 0; m < data.hidden_states.view.size(0); ++m) {
    const std::vector<double> x = to_doubles(data.hidden_states.view.at(m));
    double gate = 1;
    if (moe.shared.sigmoid_gate) {
      gate = 0;
      const std::vector<double> g = to_doubles(data.tensors.at("shared_gate").view);
      for (std::size_t h = 0; h < x.size(); ++h) gate += g[h] * x[h];
      gate = 1 / (1 + std::exp(-gate));
    }
    const std::vector<double> y = shared.apply(moe, x);
    for (std::size_t h = 0; h < x.size(); ++h) output[static_cast<std::size_t>(m) * x.size() + h] += gate * y[h];
  }
}

}  // namespace

LayerWeights LayerData::weights() const {
  LayerWeights w;
  w.experts.w13 = tensors.at("w13").view;
  w.experts.w2 = tensors.at("w2").view;
  w.experts.w13_bias = view_of(tensors, "w13_bias");
  w.experts.w2_bias = view_of(tensors, "w2_bias");
  w.e_score_correction_bias = view_of(tensors, "e_score_correction_bias");
  w.hash_table = view_of(tensors, "hash_table");
  w.shared_w13 = view_of(tensors, "shared_w13");
  w.shared_w2 = view_of(tensors, "shared_w2");
  w.shared_gate = view_of(tensors, "shared_gate");
  w.latent_in = view_of(tensors, "latent_in");
  w.latent_out = view_of(tensors, "latent_out");
  return w;
}

LayerInput LayerData::input() const {
  LayerInput in;
  in.hidden_states = hidden_states.view;
  in.router_logits = logits.view;
  if (problem.moe.routing.hash_table) in.token_ids = token_ids.view;
  return in;
}

LayerData LayerData::copy() const {
  LayerData other = *this;
  for (Slab* slab : {&other.hidden_states, &other.logits, &other.token_ids}) *slab = slab->copy();
  for (auto& [name, slab] : other.tensors) slab = slab.copy();
  return other;
}

LayerData make_layer_data(const MoeConfig& moe, const DeviceFacts& device, std::int64_t num_tokens,
                          std::uint64_t seed) {
  LayerData data;
  data.problem.moe = moe;
  data.problem.device = device;
  const auto add = [&](const char* name, std::initializer_list<std::int64_t> shape, double scale,
                       std::optional<DType> dtype = std::nullopt) {
    data.tensors[name] = random_tensor(dtype.value_or(moe.weight_dtype), shape, scale, Random(seed, name));
  };
  const std::int64_t experts = moe.num_weight_experts(), width = moe.expert_width(), inner = moe.intermediate_size;
  const std::int64_t rows = w13_rows(is_gated(moe.activation), inner);
  const std::int64_t shared = moe.shared.intermediate_size;
  add("w13", {experts, rows, width}, 1.6 * inverse_root(width));
  add("w2", {experts, width, inner}, inverse_root(inner));
  if (moe.has_w13_bias) add("w13_bias", {experts, rows}, 0.7);
  if (moe.has_w2_bias) add("w2_bias", {experts, width}, 0.7);
  if (moe.routing.has_bias) add("e_score_correction_bias", {moe.num_experts}, 0.2, DType::f32);
  if (moe.routing.hash_table) data.tensors["hash_table"] = make_hash_table(moe, Random(seed, "hash_table"));
  if (shared > 0) {
    add("shared_w13", {w13_rows(is_gated(moe.activation), shared), moe.hidden_size},
        1.6 * inverse_root(moe.hidden_size));
    add("shared_w2", {moe.hidden_size, shared}, inverse_root(shared));
  }
  if (moe.shared.sigmoid_gate) add("shared_gate", {moe.hidden_size}, inverse_root(moe.hidden_size));
  if (moe.latent_size > 0) {
    add("latent_in", {moe.latent_size, moe.hidden_size}, inverse_root(moe.hidden_size));
    add("latent_out", {moe.hidden_size, moe.latent_size}, inverse_root(moe.latent_size));
  }
  data.hidden_states = random_tensor(moe.dtype, {num_tokens, moe.hidden_size}, 1.0, Random(seed, "hidden_states"));
  const auto bias = data.tensors.find("e_score_correction_bias");
  data.logits =
      make_logits(moe, bias == data.tensors.end() ? nullptr : &bias->second, num_tokens, Random(seed, "logits"));
  data.token_ids = Slab(Tensor(DType::i32, {num_tokens}));
  Random tokens(seed, "token_ids");
  for (std::int64_t m = 0; m < num_tokens; ++m)
    store(data.token_ids.view, m, static_cast<double>(tokens.below(kVocabulary)));
  return data;
}

OracleOutput oracle_layer(const LayerData& data) {
  const MoeConfig& moe = data.problem.moe;
  const LayerWeights weights = data.weights();
  RouterInput router;
  router.logits = data.logits.view;
  router.e_score_correction_bias = weights.e_score_correction_bias;
  router.hash_table = weights.hash_table;
  router.token_ids = data.token_ids.view;
  OracleRouting routing = oracle_route(moe, router);
  const std::vector<double> zero_weights = take_zero_experts(moe, routing);

  const std::int64_t num_tokens = data.hidden_states.view.size(0), width = moe.expert_width();
  const std::vector<double> x = to_doubles(data.hidden_states.view);
  const std::vector<double> narrow = moe.latent_size > 0 ? project(x, moe.hidden_size, *weights.latent_in) : x;
  const ConstTensorView routed_input(narrow.data(), DType::f64, {num_tokens, width});
  OracleOutput result = oracle_moe(moe, routed_input, routing, oracle_experts(weights.experts), std::nullopt);
  if (moe.latent_size > 0) result.values = project(result.values, width, *weights.latent_out);
  if (moe.routed_scale_on_output)
    for (double& v : result.values) v *= moe.routing.routed_scaling_factor;
  for (std::size_t i = 0; i < x.size(); ++i)
    result.values[i] += zero_weights[i / static_cast<std::size_t>(moe.hidden_size)] * x[i];
  add_shared(data, result.values);
  std::fill(result.row_has_local_expert.begin(), result.row_has_local_expert.end(), true);
  return result;
}

}  // namespace conclave::verify_detail
