// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a row of the router grid. Out: logits with ordinary, tied, NaN and infinite rows.
#include "verify/router_grid.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "verify/element.hpp"
#include "verify/oracle_routing.hpp"
#include "verify/random.hpp"

namespace conclave::verify_detail {
namespace {

constexpr std::int64_t kTokenKinds = 19;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

void four_groups(MoeConfig& c) {
  c.routing.num_expert_group = 4;
  c.routing.topk_group = 2;
  c.routing.routed_scaling_factor = 2.5;
}

using R = RoutingMethod;
// Expert counts on both sides of 64, 128, 256 and 512, and top_k from 1 to everything: published kernels stop or go
// wrong at each of these.
constexpr RouterRow kRows[] = {
    {"", R::default_, 8, 2, 17, nullptr, true},
    {"", R::default_, 300, 10, 17, nullptr, false},
    {"", R::renormalize, 5, 5, 17, nullptr, true},
    {"", R::renormalize, 512, 10, 17, nullptr, false},
    {"", R::renormalize, 1, 1, 17, nullptr, false},
    {"", R::deepseek_v3, 8, 2, 17, nullptr, false},
    {"groups", R::deepseek_v3, 16, 3, 33, four_groups, true},
    {"groups", R::deepseek_v3, 256, 8, 17, four_groups, false},
    {"groups on_output", R::deepseek_v3, 32, 4, 17,
     [](MoeConfig& c) {
       four_groups(c);
       c.routed_scale_on_output = true;
     },
     false},
    {"groups by max", R::default_, 16, 3, 17,
     [](MoeConfig& c) {
       four_groups(c);
       c.routing.renormalize = Renormalize::sum_plus_epsilon;
     },
     false},
    {"", R::llama4, 16, 1, 17, nullptr, false},
    {"", R::renormalize_naive, 128, 8, 17, nullptr, true},
    {"", R::renormalize_naive, 65, 6, 17, nullptr, false},
    {"", R::top_k, 33, 4, 17, nullptr, false},
    {"", R::sigmoid_renorm, 129, 8, 17, nullptr, false},
    {"", R::minimax2, 257, 8, 17, nullptr, false},
    {"", R::minimax2, 9, 2, 17, nullptr, true},
    {"", R::sigmoid, 64, 6, 17, nullptr, false},
    {"", R::topk_sigmoid, 63, 22, 17, nullptr, false},
    {"", R::deepseek_v4, 40, 6, 17, [](MoeConfig& c) { c.routing.routed_scaling_factor = 1.5; }, true},
    {"hash", R::deepseek_v4, 40, 6, 17, [](MoeConfig& c) { c.routing.hash_table = true, c.routing.has_bias = false; },
     false},
    {"", R::sparsemixer, 16, 2, 33, [](MoeConfig& c) { c.routing.sparsemixer_jitter = 0.15; }, true},
    {"", R::sparsemixer, 7, 3, 17, nullptr, false},
    {"fused_shared", R::sigmoid_renorm, 24, 3, 17,
     [](MoeConfig& c) {
       c.routing.num_fused_shared_experts = 2;
       c.routing.fused_shared_weight = 0.4;
       c.routing.routed_scaling_factor = 2.5;
     },
     false},
    {"zero_experts", R::default_, 24, 5, 17, [](MoeConfig& c) { c.zero_experts = 7; }, false},
};

/// Rows 0 to 4 are special, the rest ordinary.
bool special_row(const RouterRow& row, bool hash_table, std::int64_t m, const TensorView& logits) {
  const std::int64_t experts = row.num_experts;
  const auto all = [&](double value) {
    for (std::int64_t e = 0; e < experts; ++e) store(logits, e, value);
  };
  switch (m) {
    case 0:  // Ties everywhere.
      all(0.0);
      return true;
    case 1:
      if (hash_table) return false;  // Ids do not depend on logits there, so no rule says what NaN does to them.
      all(kNan);
      return true;
    case 2:  // A tie at the last place.
      all(-0.5);
      for (std::int64_t k = 0; k + 1 < row.top_k; ++k)
        store(logits, experts - 1 - k, 1.0 + 0.25 * static_cast<double>(k));
      return true;
    case 3:                                                // Everything underflows to the same score.
      all(row.method == R::deepseek_v4 ? -60.0 : -120.0);  // softplus(-120) is not an f32 any more.
      return true;
    case 4:
      all(-kInfinity);
      return true;
    default:
      return false;
  }
}

void fill_rows(const RouterRow& row, RouterData& data, Random random) {
  constexpr double kClear = 1e-5;
  const MoeConfig& moe = data.problem.moe;
  const std::vector<double> bias =
      data.correction_bias ? to_doubles(data.correction_bias->view) : std::vector<double>();
  for (std::int64_t m = 0; m < row.num_tokens; ++m) {
    const TensorView logits = data.logits.view.at(m);
    data.infinite_row.push_back(m == 4);
    if (special_row(row, moe.routing.hash_table, m, logits)) continue;
    for (int attempt = 0; attempt < 200; ++attempt) {
      // One NaN among numbers, on the expert that its bias favours most, and scores so low that the bias decides: never
      // chosen while anything else can be.
      const bool with_nan = m % 6 == 5 && !moe.routing.hash_table;
      const double shift = with_nan && !bias.empty() ? -6.0 : 0.0;
      for (std::int64_t e = 0; e < row.num_experts; ++e) store(logits, e, shift + 2.0 * random.unit());
      const auto favourite = std::max_element(bias.begin(), bias.end()) - bias.begin();
      if (with_nan) store(logits, bias.empty() ? random.below(row.num_experts) : favourite, kNan);
      if (route_row(moe, to_doubles(logits), bias, {}).margin > kClear) break;
    }
  }
}

}  // namespace

std::span<const RouterRow> router_grid() noexcept {
  return kRows;
}

RouterInput RouterData::input(std::int64_t first, std::int64_t count) const {
  RouterInput in;
  in.logits = logits.view.narrow(0, first, count);
  if (correction_bias) in.e_score_correction_bias = correction_bias->view;
  if (hash_table) in.hash_table = hash_table->view;
  if (token_ids) in.token_ids = token_ids->view.narrow(0, first, count);
  return in;
}

RouterData make_router_data(const RouterRow& row, DType dtype, const DeviceFacts& device, std::uint64_t seed) {
  RouterData data;
  MoeConfig& moe = data.problem.moe;
  moe.num_experts = row.num_experts;
  moe.top_k = row.top_k;
  moe.hidden_size = moe.intermediate_size = 8;
  moe.max_num_tokens = row.num_tokens;
  moe.router_logits_dtype = dtype;
  moe.routing = routing_preset(row.method);
  if (row.apply != nullptr) row.apply(moe);
  data.problem.device = device;
  data.label = fmt::format("{}{}{} {} E{} k{} M{}", conclave::name_of(row.method), row.name.empty() ? "" : " ",
                           row.name, conclave::name_of(dtype), row.num_experts, row.top_k, row.num_tokens);
  data.logits = Slab(dtype, {row.num_tokens, row.num_experts}, 3);
  if (moe.routing.has_bias) {
    data.correction_bias = Slab(Tensor(DType::f32, {row.num_experts}));
    Random random(seed, "bias");
    for (std::int64_t e = 0; e < row.num_experts; ++e) store(data.correction_bias->view, e, 0.2 * random.unit());
  }
  if (moe.routing.hash_table) {
    Random random(seed, "hash_table");
    data.hash_table = Slab(Tensor(DType::i32, {kTokenKinds, row.top_k}));
    data.token_ids = Slab(Tensor(DType::i32, {row.num_tokens}));
    for (std::int64_t t = 0; t < kTokenKinds; ++t) {
      const std::int64_t start = random.below(row.num_experts);
      for (std::int64_t k = 0; k < row.top_k; ++k)
        store(data.hash_table->view, t * row.top_k + k, static_cast<double>((start + 3 * k) % row.num_experts));
    }
    for (std::int64_t m = 0; m < row.num_tokens; ++m)
      store(data.token_ids->view, m, static_cast<double>(random.below(kTokenKinds)));
  }
  fill_rows(row, data, Random(seed, "logits"));
  return data;
}

}  // namespace conclave::verify_detail
