// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: expert weights as floats. Out: the same under a key, expert by expert.
#include "base/error.hpp"
#include "base/tensor_format.hpp"
#include "quant/expert_matrices.hpp"

namespace conclave {
namespace {

/// The tensors of w13 or w2, with the experts in front.
struct Tensors {
  Tensor elements, scale;
  std::optional<Tensor> global_scale, zero_point;
};

Tensor zeros(std::int64_t experts, const MatrixShape& shape) {
  return Tensor(shape.dtype, {experts, shape.rows, shape.cols});
}

TensorView sliced_rows(const TensorView& view, quant::RowSlice rows) {
  TensorView s = view.narrow(0, rows.first, view.size(0) / 2);
  s.strides[0] *= rows.step;
  return s;
}
ConstTensorView sliced_rows(const ConstTensorView& view, quant::RowSlice rows) {
  ConstTensorView s = view.narrow(0, rows.first, view.size(0) / 2);
  s.strides[0] *= rows.step;
  return s;
}

QuantMatrix matrix_of(QuantKey key, const Tensors& t, std::int64_t expert, std::int64_t rows, std::int64_t cols) {
  QuantMatrix m{key, QuantRole::weights, rows, cols, t.elements.view().at(expert), t.scale.view().at(expert), {}, {}};
  if (t.global_scale) m.global_scale = t.global_scale->view().at(expert);
  if (t.zero_point) m.zero_point = t.zero_point->view().at(expert);
  return m;
}

Tensors quantise_all(QuantKey key, const ConstTensorView& plain, const MoeConfig* split) {
  const std::int64_t experts = plain.size(0), rows = plain.size(1), cols = plain.size(2);
  const quant::Format f = quant::format_of(key, QuantRole::weights);
  QuantShapes shapes = shapes_of(key, rows, cols);
  const bool wide_scale = f.scale_is_tensor_wide();
  if (split && wide_scale) shapes.scale.rows = 2;
  if (split && shapes.global_scale) shapes.global_scale->rows = 2;
  Tensors t{zeros(experts, shapes.elements), zeros(experts, shapes.scale), std::nullopt, std::nullopt};
  if (shapes.global_scale) t.global_scale = zeros(experts, *shapes.global_scale);
  if (shapes.zero_point) t.zero_point = zeros(experts, *shapes.zero_point);
  for (std::int64_t e = 0; e < experts; ++e) {
    const QuantMatrix whole = matrix_of(key, t, e, rows, cols);
    if (!split || !(wide_scale || f.global_group)) {
      quantise(plain.at(e), whole);
      continue;
    }
    for (int part = 0; part < 2; ++part) {
      const quant::RowSlice slice = quant::gate_or_up_rows(split->w13_layout, part, split->intermediate_size);
      QuantMatrix half = whole;
      half.rows = rows / 2;
      half.elements = sliced_rows(whole.elements, slice);
      half.scale = wide_scale ? whole.scale.narrow(0, part, 1) : sliced_rows(whole.scale, slice);
      if (f.global_group) half.global_scale = whole.global_scale.narrow(0, part, 1);
      quantise(sliced_rows(plain.at(e), slice), half);
    }
  }
  return t;
}

std::optional<ConstTensorView> view_if(const std::optional<Tensor>& tensor) {
  if (!tensor) return std::nullopt;
  return ConstTensorView(*tensor);
}

}  // namespace

ExpertWeights QuantisedExperts::weights(const ExpertWeights& plain) const {
  ExpertWeights w = plain;
  w.give_up = nullptr;
  w.w13 = w13;
  w.w2 = w2;
  w.w13_scale = view_if(w13_scale);
  w.w2_scale = view_if(w2_scale);
  w.w13_global_scale = view_if(w13_global_scale);
  w.w2_global_scale = view_if(w2_global_scale);
  w.w13_zero_point = view_if(w13_zero_point);
  w.w2_zero_point = view_if(w2_zero_point);
  return w;
}

QuantisedExperts quantise_experts(const MoeConfig& moe, QuantKey key, const ExpertWeights& plain, bool split_gate_up) {
  const Support support = quant::supports_key(key, QuantRole::weights);
  require(static_cast<bool>(support) && key != QuantKey::none, "quantise_experts: {}",
          support ? "given none, expected a format" : support.reason());
  const bool gated = is_gated(moe.activation);
  const std::int64_t rows = w13_rows(gated, moe.intermediate_size);
  require(plain.w13.rank == 3 && plain.w13.size(1) == rows && plain.w13.size(2) == moe.expert_width(),
          "w13: given {}, expected [experts, {}, {}]", plain.w13, rows, moe.expert_width());
  require(plain.w2.rank == 3 && plain.w2.size(0) == plain.w13.size(0) && plain.w2.size(1) == moe.expert_width() &&
              plain.w2.size(2) == moe.intermediate_size,
          "w2: given {}, expected [{}, {}, {}]", plain.w2, plain.w13.size(0), moe.expert_width(),
          moe.intermediate_size);
  const Tensors w13 = quantise_all(key, plain.w13, split_gate_up && gated ? &moe : nullptr);
  const Tensors w2 = quantise_all(key, plain.w2, nullptr);
  return {w13.elements,     w2.elements,     w13.scale,      w2.scale,
          w13.global_scale, w2.global_scale, w13.zero_point, w2.zero_point};
}

}  // namespace conclave
