// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a problem with plain weights. Out: the same with weights under its row's key and the scales that go with it.
// Before, the weights are made such that mistakes with scales show: experts, and where they have scales of their own
// gate and up, differ in size; where there are zero points, zero is not in the middle.
#include <algorithm>
#include <cmath>

#include "conclave/quantise.hpp"
#include "verify/element.hpp"
#include "verify/problem.hpp"

namespace conclave::verify_detail {
namespace {

template <class F>
void change_rows(const Slab& slab, F f) {
  for (std::int64_t e = 0; e < slab.view.size(0); ++e)
    for (std::int64_t r = 0; r < slab.view.size(1); ++r) {
      const TensorView row = slab.view.at(e).at(r);
      for_each_offset(row, [&](std::int64_t offset) { store(row, offset, f(e, r, load(row, offset))); });
    }
}

bool is_up_row(const MoeConfig& moe, std::int64_t row) {
  if (moe.w13_layout == W13Layout::interleaved) return row % 2 == 1;
  return (row < moe.intermediate_size) == (moe.w13_layout == W13Layout::up_gate);
}

void shape_weights(const GridRow& row, ProblemData& data) {
  const MoeConfig& moe = data.problem.moe;
  constexpr double kSizes[] = {0.7, 1.3, 1.0};
  const bool shifted = !scheme_of(row.quant.weights).symmetric;
  change_rows(data.w13, [&](std::int64_t e, std::int64_t r, double w) {
    const double smaller = row.split_gate_up && is_up_row(moe, r) ? 0.25 : 1;
    const double shift = shifted ? 1.0 / std::sqrt(static_cast<double>(moe.hidden_size)) : 0;
    return kSizes[e % 3] * smaller * (w + shift);
  });
  change_rows(data.w2, [&](std::int64_t e, std::int64_t, double w) {
    const double shift = shifted ? 0.6 / std::sqrt(static_cast<double>(moe.intermediate_size)) : 0;
    return kSizes[(e + 1) % 3] * (w + shift);
  });
}

/// Static scales with room for values up to about `largest`, another one for each expert.
Slab make_static_scales(QuantKey key, std::int64_t experts, double largest) {
  const double codes = key == QuantKey::nvfp4 ? 448 * 6 : key == QuantKey::int8_tensor ? 127 : 448;
  Slab slab{Tensor(DType::f32, {experts})};
  for (std::int64_t e = 0; e < experts; ++e)
    store(slab.view, e, largest / codes * (1 + 0.2 * static_cast<double>(e % 3)));
  return slab;
}

void put(ProblemData& data, const char* name, const std::optional<Tensor>& tensor) {
  if (tensor) data.scales[name] = Slab(*tensor);
}

}  // namespace

void quantise_problem(const GridRow& row, ProblemData& data) {
  data.problem.quant = row.quant;
  const std::int64_t experts = data.w13.view.size(0);
  const QuantKey activations = row.quant.activations;
  if (activations == QuantKey::fp8_tensor || activations == QuantKey::int8_tensor || activations == QuantKey::nvfp4) {
    // Inputs reach 1.73; the largest of them saturate at some experts.
    data.scales["a1_scale"] = make_static_scales(activations, experts, 1.5);
    data.scales["a2_scale"] = make_static_scales(activations, experts, 1.2);
  }
  if (row.quant.weights == QuantKey::none) return;
  shape_weights(row, data);
  const QuantisedExperts q = quantise_experts(data.problem.moe, row.quant.weights, data.weights(), row.split_gate_up);
  data.w13 = Slab(q.w13);
  data.w2 = Slab(q.w2);
  put(data, "w13_scale", q.w13_scale);
  put(data, "w2_scale", q.w2_scale);
  put(data, "w13_global_scale", q.w13_global_scale);
  put(data, "w2_global_scale", q.w2_global_scale);
  put(data, "w13_zero_point", q.w13_zero_point);
  put(data, "w2_zero_point", q.w2_zero_point);
}

}  // namespace conclave::verify_detail
