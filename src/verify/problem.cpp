// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a row of the grid. Out: configuration, ids, logits and weights, all drawn from the seed.
#include "verify/problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "conclave/expert_map.hpp"
#include "verify/element.hpp"
#include "verify/oracle_routing.hpp"
#include "verify/random.hpp"

namespace conclave::verify_detail {
namespace {

/// Any width will do, as long as rows are not adjacent and not aligned to anything.
constexpr std::int64_t kPadding = 3;

DType other_dtype(DType dtype) {
  if (dtype == DType::f32) return DType::bf16;
  return dtype == DType::bf16 ? DType::f32 : DType::bf16;
}

RoutingConfig make_routing(const GridRow& row) {
  RoutingConfig r = routing_preset(row.routing);
  if (row.routing == RoutingMethod::deepseek_v3 && row.shape.num_experts % 4 == 0) {
    r.num_expert_group = 4;
    r.topk_group = 2;
    r.routed_scaling_factor = 2.5;
  }
  return r;
}

MoeConfig make_config(const GridRow& row, DType dtype) {
  MoeConfig c;
  c.num_experts = row.shape.num_experts;
  c.top_k = row.shape.top_k;
  c.hidden_size = row.shape.hidden_size;
  c.intermediate_size = row.shape.intermediate_size;
  c.max_num_tokens = std::max<std::int64_t>(row.shape.num_tokens, 1);
  c.dtype = dtype;
  c.weight_dtype = row.mixed_dtypes ? other_dtype(dtype) : dtype;
  c.router_logits_dtype = dtype;
  c.activation = row.activation;
  c.activation_params = row.params;
  if (row.activation == Activation::swigluoai_uninterleave && !row.params.limit) c.activation_params.limit = 1.0;
  c.w13_layout = row.layout;
  c.has_w13_bias = row.bias == Bias::both || row.bias == Bias::w13;
  c.has_w2_bias = row.bias == Bias::both || row.bias == Bias::w2;
  c.routing = make_routing(row);
  c.apply_router_weight_on_input = row.weight_on_input;
  return c;
}

void fill(const Slab& slab, double scale, Random random) {
  for_each_offset(slab.view, [&](std::int64_t offset) { store(slab.view, offset, scale * random.unit()); });
}

/// The first k of a random order of all experts.
std::vector<std::int64_t> distinct_experts(std::int64_t num_experts, std::int64_t top_k, Random& random) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(num_experts));
  std::iota(ids.begin(), ids.end(), 0);
  for (std::int64_t i = 0; i < top_k; ++i)
    std::swap(ids[static_cast<std::size_t>(i)], ids[static_cast<std::size_t>(i + random.below(num_experts - i))]);
  ids.resize(static_cast<std::size_t>(top_k));
  return ids;
}

/// Puts `id` first, keeping ids distinct.
void put_first(std::vector<std::int64_t>& ids, std::int64_t id) {
  const auto found = std::find(ids.begin(), ids.end(), id);
  if (found != ids.end()) *found = ids.front();
  ids.front() = id;
}

std::vector<std::int64_t> draw_ids(const GridRow& row, std::int64_t token, Random& random) {
  const Shape& s = row.shape;
  const bool nan_expert = row.picks == Picks::zero_weights;
  std::vector<std::int64_t> ids = distinct_experts(nan_expert ? s.num_experts - 1 : s.num_experts, s.top_k, random);
  if (row.picks == Picks::hot && random.below(10) < 9) put_first(ids, s.num_experts / 2);
  if (row.picks == Picks::duplicates && token % 3 != 2) ids.back() = ids.front();
  if (row.picks == Picks::holes)
    for (std::int64_t& id : ids)
      if (token % 4 == 3 || random.below(4) == 0) id = -1;
  if (row.picks == Picks::out_of_range) {
    constexpr std::int64_t kStale[] = {1000000, -7, 2147483647, -2147483647 - 1};
    ids.back() = token % 5 == 4 ? s.num_experts : token % 5 == 3 ? ids.back() : kStale[random.below(4)];
  }
  if (row.picks == Picks::all_empty) std::fill(ids.begin(), ids.end(), -1);
  if (nan_expert && token % 2 == 0) ids.back() = s.num_experts - 1;
  return ids;
}

void fill_picks(const GridRow& row, ProblemData& data, Random random) {
  const Shape& s = row.shape;
  data.topk_ids = Slab(Tensor(DType::i32, {s.num_tokens, s.top_k}));
  data.topk_weights = Slab(Tensor(DType::f32, {s.num_tokens, s.top_k}));
  for (std::int64_t m = 0; m < s.num_tokens; ++m) {
    const std::vector<std::int64_t> ids = draw_ids(row, m, random);
    for (std::int64_t k = 0; k < s.top_k; ++k) {
      const std::int64_t id = ids[static_cast<std::size_t>(k)];
      // Far from 1 and from each other, so that a forgotten or doubled weight shows.
      double weight = random.uniform(0.2, 1.7) / (1.0 + static_cast<double>(k));
      if (row.picks == Picks::zero_weights && (id == s.num_experts - 1 || m % 3 == 1)) weight = 0;
      store(data.topk_ids.view, m * s.top_k + k, static_cast<double>(id));
      store(data.topk_weights.view, m * s.top_k + k, weight);
    }
  }
}

/// Logits that no correct f32 router can read differently: rows are drawn until every choice is clear.
void fill_logits(const GridRow& row, ProblemData& data, Random random) {
  constexpr double kClear = 1e-5;
  const MoeConfig& moe = data.problem.moe;
  const std::int64_t experts = moe.num_experts;
  data.logits = Slab(Tensor(moe.router_logits_dtype, {row.shape.num_tokens, experts}));
  std::vector<double> bias;
  if (moe.routing.has_bias) {
    data.correction_bias = Slab(Tensor(DType::f32, {experts}));
    fill(*data.correction_bias, 0.2, random);
    bias = to_doubles(data.correction_bias->view);
  }
  for (std::int64_t m = 0; m < row.shape.num_tokens; ++m) {
    const TensorView logits = data.logits.view.at(m);
    for (int attempt = 0; attempt < 100; ++attempt) {
      for (std::int64_t e = 0; e < experts; ++e) store(logits, e, 1.5 * random.unit());
      if (row.picks == Picks::hot) store(logits, experts / 2, 4.0);
      if (route_row(moe, to_doubles(logits), bias, {}).margin > kClear) break;
    }
  }
}

/// As many local experts as the linear placement gives this rank, but which ones, and in which slots, is random.
void fill_expert_map(const GridRow& row, ProblemData& data, Random random) {
  if (row.num_ranks == 1) return;
  data.problem.parallel = make_parallel(row.num_ranks, row.rank, 1, 0, 1, 0, 1, true, All2All::none);
  const ExpertMap linear = make_expert_map(row.shape.num_experts, row.num_ranks, row.rank, Placement::linear);
  data.expert_map = Slab(Tensor(DType::i32, {row.shape.num_experts}));
  for (std::int64_t e = 0; e < row.shape.num_experts; ++e) store(data.expert_map->view, e, -1);
  const auto local = distinct_experts(row.shape.num_experts, linear.num_local(), random);
  for (std::size_t slot = 0; slot < local.size(); ++slot)
    store(data.expert_map->view, local[slot], static_cast<double>(slot));
}

/// Products keep variance near 1 whatever the sizes, so that activations leave their linear range and limits bite.
void fill_weights(const GridRow& row, ProblemData& data, std::uint64_t seed) {
  const MoeConfig& moe = data.problem.moe;
  const Shape& s = row.shape;
  const std::int64_t rows = w13_rows(is_gated(row.activation), s.intermediate_size);
  const std::int64_t local =
      row.num_ranks == 1 ? s.num_experts
                         : make_expert_map(s.num_experts, row.num_ranks, row.rank, Placement::linear).num_local();
  const std::int64_t padding = data.strided ? kPadding : 0;
  data.w13 = Slab(moe.weight_dtype, {local, rows, s.hidden_size}, padding);
  data.w2 = Slab(moe.weight_dtype, {local, s.hidden_size, s.intermediate_size}, padding);
  fill(data.w13, 1.6 / std::sqrt(static_cast<double>(s.hidden_size)), Random(seed, "w13"));
  fill(data.w2, 1.0 / std::sqrt(static_cast<double>(s.intermediate_size)), Random(seed, "w2"));
  if (moe.has_w13_bias) fill(data.w13_bias.emplace(Tensor(moe.weight_dtype, {local, rows})), 0.7, {seed, "w13_bias"});
  if (moe.has_w2_bias)
    fill(data.w2_bias.emplace(Tensor(moe.weight_dtype, {local, s.hidden_size})), 0.7, {seed, "w2_bias"});
  if (row.picks == Picks::zero_weights) {
    const TensorView broken = data.w2.view.at(local - 1);
    for_each_offset(broken, [&](std::int64_t offset) { store(broken, offset, NAN); });
  }
}

constexpr std::pair<const char*, std::optional<ConstTensorView> ExpertWeights::*> kScales[] = {
    {"w13_scale", &ExpertWeights::w13_scale},
    {"w2_scale", &ExpertWeights::w2_scale},
    {"w13_global_scale", &ExpertWeights::w13_global_scale},
    {"w2_global_scale", &ExpertWeights::w2_global_scale},
    {"w13_zero_point", &ExpertWeights::w13_zero_point},
    {"w2_zero_point", &ExpertWeights::w2_zero_point},
    {"a1_scale", &ExpertWeights::a1_scale},
    {"a2_scale", &ExpertWeights::a2_scale},
};

std::string_view name_of(Picks picks) {
  constexpr std::string_view kNames[] = {"", "holes", "duplicates", "hot", "zero_weights", "out_of_range", "all_empty"};
  return kNames[static_cast<std::size_t>(picks)];
}

std::string make_label(const GridRow& row, const MoeConfig& moe) {
  const Shape& s = row.shape;
  std::string label = fmt::format("{} {}", conclave::name_of(row.activation), conclave::name_of(row.layout));
  if (moe.has_w13_bias || moe.has_w2_bias)
    label += moe.has_w13_bias && moe.has_w2_bias ? " bias" : moe.has_w13_bias ? " w13_bias" : " w2_bias";
  if (moe.activation_params.limit) label += " limit";
  label += fmt::format(" {}", conclave::name_of(moe.dtype));
  if (row.mixed_dtypes) label += fmt::format("x{}", conclave::name_of(moe.weight_dtype));
  label +=
      fmt::format(" E{} k{} H{} I{} M{}", s.num_experts, s.top_k, s.hidden_size, s.intermediate_size, s.num_tokens);
  if (row.picks != Picks::distinct) label += fmt::format(" {}", name_of(row.picks));
  if (row.weight_on_input) label += " weight_on_input";
  if (row.num_ranks > 1) label += fmt::format(" rank{}/{}", row.rank, row.num_ranks);
  if (row.memory == Memory::strided) label += " strided";
  if (row.quant != QuantConfig{})
    label += fmt::format(" {}x{}", conclave::name_of(row.quant.weights), conclave::name_of(row.quant.activations));
  if (row.split_gate_up) label += " split";
  return label;
}

}  // namespace

Slab::Slab(DType dtype, std::initializer_list<std::int64_t> shape, std::int64_t padding) {
  std::vector<std::int64_t> wide(shape);
  wide.back() += padding;
  memory = Tensor(dtype, wide);
  poison(memory);
  view = memory.view().narrow(static_cast<int>(wide.size()) - 1, 0, wide.back() - padding);
}

Slab Slab::copy() const {
  Slab other;
  other.memory = clone_strided(view, other.view);
  return other;
}

ExpertWeights ProblemData::weights() const {
  ExpertWeights w;
  w.w13 = w13.view;
  w.w2 = w2.view;
  if (w13_bias) w.w13_bias = w13_bias->view;
  if (w2_bias) w.w2_bias = w2_bias->view;
  for (const auto& [name, field] : kScales)
    if (const auto found = scales.find(name); found != scales.end()) w.*field = found->second.view;
  return w;
}

RouterInput ProblemData::router_input(std::int64_t first, std::int64_t count) const {
  RouterInput input;
  input.logits = logits.view.narrow(0, first, count);
  if (correction_bias) input.e_score_correction_bias = correction_bias->view;
  input.hidden_states = hidden_states.view.narrow(0, first, count);
  return input;
}

std::optional<ConstTensorView> ProblemData::map_view() const {
  if (!expert_map) return std::nullopt;
  return expert_map->view;
}

ProblemData ProblemData::copy() const {
  ProblemData other = *this;
  for (Slab* slab : {&other.hidden_states, &other.topk_ids, &other.topk_weights, &other.logits, &other.w13, &other.w2})
    *slab = slab->copy();
  for (std::optional<Slab>* slab : {&other.correction_bias, &other.expert_map, &other.w13_bias, &other.w2_bias})
    if (slab->has_value()) *slab = (*slab)->copy();
  for (auto& [_, slab] : other.scales) slab = slab.copy();
  return other;
}

ProblemData make_problem(const GridRow& row, DType dtype, const DeviceFacts& device, std::uint64_t seed) {
  ProblemData data;
  data.problem.moe = make_config(row, dtype);
  data.problem.device = device;
  data.label = make_label(row, data.problem.moe);
  data.picks = row.picks;
  data.strided = row.memory == Memory::strided;
  data.hidden_states = Slab(dtype, {row.shape.num_tokens, row.shape.hidden_size}, data.strided ? kPadding : 0);
  fill(data.hidden_states, 1.0, Random(seed, "hidden_states"));
  fill_picks(row, data, Random(seed, "picks"));
  fill_logits(row, data, Random(seed, "logits"));
  fill_expert_map(row, data, Random(seed, "expert_map"));
  fill_weights(row, data, seed);
  if (row.quant != QuantConfig{}) quantise_problem(row, data);
  return data;
}

double tolerance_of(DType dtype) noexcept {
  return dtype == DType::f32 ? 1e-5 : 6e-3;
}

double tolerance_of(const Problem& problem) noexcept {
  return problem.quant.activations == QuantKey::none ? tolerance_of(problem.moe.dtype) : 6e-3;
}

}  // namespace conclave::verify_detail
