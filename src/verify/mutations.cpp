// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The list of mutations; a new one is a function and a line.
#include "verify/mutations.hpp"

#include <numeric>

#include "verify/element.hpp"

namespace conclave::verify_detail {
namespace {

/// dst := src, element by element; same shape.
void assign(const TensorView& dst, const ConstTensorView& src) {
  std::vector<double> values = to_doubles(src);
  std::size_t next = 0;
  for_each_offset(dst, [&](std::int64_t offset) { store(dst, offset, values[next++]); });
}

void fill(const TensorView& view, double value) {
  for_each_offset(view, [&](std::int64_t offset) { store(view, offset, value); });
}

/// The rows of each expert's matrix (or bias) in the order that `source(row)` says.
template <class F>
void permute_rows(Slab& slab, F source) {
  const Slab before = slab.copy();
  for (std::int64_t e = 0; e < slab.view.size(0); ++e)
    for (std::int64_t row = 0; row < slab.view.size(1); ++row) {
      // A bias has one element for each row: the same slice, one dimension less.
      const TensorView to = slab.view.at(e).narrow(0, row, 1);
      assign(to, before.view.at(e).narrow(0, source(row), 1));
    }
}

bool swapped_gate_up(ProblemData& d) {
  const MoeConfig& moe = d.problem.moe;
  if (!is_gated(moe.activation)) return false;
  const std::int64_t size = moe.intermediate_size;
  const auto partner = [&](std::int64_t row) {
    if (moe.w13_layout == W13Layout::interleaved) return row ^ 1;
    return row < size ? row + size : row - size;
  };
  permute_rows(d.w13, partner);
  if (d.w13_bias) permute_rows(*d.w13_bias, partner);
  return true;
}

bool wrong_layout_tag(ProblemData& d) {
  MoeConfig& moe = d.problem.moe;
  if (!is_gated(moe.activation)) return false;
  moe.w13_layout = moe.w13_layout == W13Layout::interleaved ? W13Layout::gate_up : W13Layout::interleaved;
  return true;
}

bool unpermuted_w13_bias(ProblemData& d) {
  const MoeConfig& moe = d.problem.moe;
  if (!d.w13_bias || !is_gated(moe.activation)) return false;
  const std::int64_t size = moe.intermediate_size;
  permute_rows(*d.w13_bias, [&](std::int64_t row) {
    if (moe.w13_layout == W13Layout::interleaved) return row / 2 + row % 2 * size;
    return row < size ? 2 * row : 2 * (row - size) + 1;
  });
  return true;
}

bool dropped_clamp(ProblemData& d) {
  ActivationParams& params = d.problem.moe.activation_params;
  if (!resolve(d.problem.moe.activation, params).limit) return false;
  params.limit = 1e30;
  return true;
}

bool default_constants(ProblemData& d) {
  ActivationParams& p = d.problem.moe.activation_params;
  if (!p.alpha && !p.beta) return false;
  if (d.problem.moe.activation == Activation::situ) return false;  // Its beta has no default.
  p.alpha.reset();
  p.beta.reset();
  return true;
}

bool dropped_linear_beta(ProblemData& d) {
  if (!d.problem.moe.activation_params.linear_beta) return false;
  d.problem.moe.activation_params.linear_beta.reset();
  return true;
}

bool wrong_activation(ProblemData& d) {
  MoeConfig& moe = d.problem.moe;
  const bool had_default = moe.activation_params == ActivationParams{};
  moe.activation_params = {};
  switch (moe.activation) {
    case Activation::gelu:
      moe.activation = Activation::gelu_tanh;
      return true;
    case Activation::gelu_tanh:
      moe.activation = Activation::gelu;
      return true;
    case Activation::gelu_tanh_no_mul:
    case Activation::relu2_no_mul:
      moe.activation = Activation::silu_no_mul;
      return true;
    case Activation::gelu_no_mul:
    case Activation::silu_no_mul:
      moe.activation = Activation::gelu_tanh_no_mul;
      return true;
    case Activation::silu:
      moe.activation = Activation::gelu;
      return had_default;
    default:
      moe.activation = Activation::silu;
      return true;
  }
}

bool clamp_on_wrong_side(ProblemData& d) {
  MoeConfig& moe = d.problem.moe;
  if (moe.activation != Activation::silu && moe.activation != Activation::swiglustep) return false;
  if (!moe.activation_params.limit) return false;
  moe.activation = moe.activation == Activation::silu ? Activation::swiglustep : Activation::silu;
  return true;
}

bool dropped_w13_bias(ProblemData& d) {
  if (d.w13_bias) fill(d.w13_bias->view, 0);
  return d.w13_bias.has_value();
}

bool dropped_w2_bias(ProblemData& d) {
  if (d.w2_bias) fill(d.w2_bias->view, 0);
  return d.w2_bias.has_value();
}

template <class F>
bool map_weights(ProblemData& d, F f) {
  for_each_offset(d.topk_weights.view, [&](std::int64_t offset) {
    store(d.topk_weights.view, offset, f(load(d.topk_weights.view, offset)));
  });
  return true;
}

bool dropped_weight(ProblemData& d) {
  return d.picks != Picks::zero_weights && map_weights(d, [](double) { return 1.0; });
}

bool weight_applied_twice(ProblemData& d) {
  return map_weights(d, [](double w) { return w * w; });
}

bool weights_in_wrong_order(ProblemData& d) {
  const std::int64_t top_k = d.problem.moe.top_k;
  if (top_k < 2 || d.picks == Picks::zero_weights) return false;
  const Slab before = d.topk_weights.copy();
  for (std::int64_t m = 0; m < d.num_tokens(); ++m)
    for (std::int64_t k = 0; k < top_k; ++k)
      store(d.topk_weights.view, m * top_k + k, load(before.view, m * top_k + (k + 1) % top_k));
  return true;
}

bool weight_moved_to_output(ProblemData& d) {
  const bool on_input = d.problem.moe.apply_router_weight_on_input;
  d.problem.moe.apply_router_weight_on_input = false;
  return on_input;
}

/// Every expert's weights are those of its neighbour.
bool off_by_one_expert(ProblemData& d) {
  const std::int64_t local = d.w13.view.size(0);
  if (local < 2 || d.picks == Picks::zero_weights) return false;
  const auto shift = [&](Slab& slab) {
    const Slab before = slab.copy();
    for (std::int64_t e = 0; e < local; ++e) assign(slab.view.at(e), before.view.at((e + 1) % local));
  };
  shift(d.w13);
  shift(d.w2);
  if (d.w13_bias) shift(*d.w13_bias);
  if (d.w2_bias) shift(*d.w2_bias);
  return true;
}

bool dropped_last_pick(ProblemData& d) {
  const std::int64_t top_k = d.problem.moe.top_k;
  for (std::int64_t m = 0; m < d.num_tokens(); ++m) store(d.topk_ids.view, m * top_k + top_k - 1, -1);
  return true;
}

bool duplicates_counted_once(ProblemData& d) {
  const std::int64_t top_k = d.problem.moe.top_k;
  if (d.picks != Picks::duplicates) return false;
  for (std::int64_t m = 0; m < d.num_tokens(); ++m) {
    const double first = load(d.topk_ids.view, m * top_k);
    for (std::int64_t k = 1; k < top_k; ++k)
      if (load(d.topk_ids.view, m * top_k + k) == first) store(d.topk_ids.view, m * top_k + k, -1);
  }
  return true;
}

bool empty_slot_computed(ProblemData& d) {
  if (d.picks != Picks::holes) return false;
  for_each_offset(d.topk_ids.view, [&](std::int64_t offset) {
    if (load(d.topk_ids.view, offset) < 0) store(d.topk_ids.view, offset, 0);
  });
  return true;
}

bool remote_expert_computed(ProblemData& d) {
  if (!d.expert_map || d.w13.view.size(0) == 0) return false;
  for_each_offset(d.expert_map->view, [&](std::int64_t offset) {
    if (load(d.expert_map->view, offset) < 0) store(d.expert_map->view, offset, 0);
  });
  return true;
}

/// The last index of a reduced dimension contributes nothing: a tail that a kernel forgot.
bool missing_last_column(Slab& slab) {
  const std::int64_t columns = slab.view.size(2);
  if (slab.view.numel() == 0) return false;
  fill(slab.view.narrow(2, columns - 1, 1), 0);
  return true;
}
bool missing_last_hidden(ProblemData& d) {
  return missing_last_column(d.w13);
}
bool missing_last_intermediate(ProblemData& d) {
  return missing_last_column(d.w2);
}
/// The last output column is never computed.
bool missing_last_output(ProblemData& d) {
  if (d.w2.view.numel() == 0) return false;
  fill(d.w2.view.narrow(1, d.w2.view.size(1) - 1, 1), 0);
  if (d.w2_bias) fill(d.w2_bias->view.narrow(1, d.w2_bias->view.size(1) - 1, 1), 0);
  return true;
}

bool dropped_scaling_factor(ProblemData& d) {
  RoutingConfig& routing = d.problem.moe.routing;
  const bool had = routing.routed_scaling_factor != 1.0;
  routing.routed_scaling_factor = 1.0;
  return had;
}

constexpr Mutation kMutations[] = {
    {"swapped_gate_up", swapped_gate_up},
    {"wrong_layout_tag", wrong_layout_tag},
    {"unpermuted_w13_bias", unpermuted_w13_bias},
    {"dropped_clamp", dropped_clamp},
    {"clamp_on_wrong_side", clamp_on_wrong_side},
    {"default_constants", default_constants},
    {"dropped_linear_beta", dropped_linear_beta},
    {"wrong_activation", wrong_activation},
    {"dropped_w13_bias", dropped_w13_bias},
    {"dropped_w2_bias", dropped_w2_bias},
    {"dropped_weight", dropped_weight, false},
    {"weight_applied_twice", weight_applied_twice, false},
    {"weights_in_wrong_order", weights_in_wrong_order, false},
    {"weight_moved_to_output", weight_moved_to_output},
    {"off_by_one_expert", off_by_one_expert},
    {"dropped_last_pick", dropped_last_pick, false},
    {"duplicates_counted_once", duplicates_counted_once, false},
    {"empty_slot_computed", empty_slot_computed, false},
    {"remote_expert_computed", remote_expert_computed},
    {"missing_last_hidden", missing_last_hidden},
    {"missing_last_intermediate", missing_last_intermediate},
    {"missing_last_output", missing_last_output},
    {"dropped_scaling_factor", dropped_scaling_factor},
};

}  // namespace

std::span<const Mutation> mutations() noexcept {
  return kMutations;
}

}  // namespace conclave::verify_detail
