// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Rows to bytes.
#include "dispatch/row_format.hpp"

#include <algorithm>
#include <array>

#include "base/error.hpp"
#include "conclave/quantise.hpp"
#include "cpu/float_convert.hpp"
#include "dispatch/weight_on_input.hpp"

namespace conclave::dispatch {

RowFormat::RowFormat(const Problem& problem)
    : moe_dtype_(problem.moe.dtype),
      width_(problem.moe.expert_width()),
      key_(problem.quant.activations),
      quantiser_(problem.quant.activations),
      dtype_(moe_dtype_),
      columns_(width_) {}

void RowFormat::negotiate(const Experts& experts) {
  coded_ = can_code_rows(key_) && !experts.expects_unquantized_inputs();
  if (!coded_) return;
  const QuantShapes shapes = shapes_of(key_, 1, width_, QuantRole::activations);
  dtype_ = shapes.elements.dtype;
  columns_ = shapes.elements.cols;
  scale_dtype_ = shapes.scale.dtype;
  num_scales_ = shapes.scale.cols;
  layout_ = experts.activation_scale_layout();
}

void RowFormat::check(const PrepareInput& input) const {
  require(!coded_ || !input.defer_input_quant,
          "prepare: given defer_input_quant, but the experts that it was set up for take {}", name_of(key_));
}

TensorView RowFormat::take_rows(Arena& arena, std::initializer_list<std::int64_t> rows) const {
  std::array<std::int64_t, kMaxRank> shape{};
  std::copy(rows.begin(), rows.end(), shape.begin());
  shape[rows.size()] = columns_;
  return arena.take(dtype_, std::span<const std::int64_t>(shape.data(), rows.size() + 1));
}

TensorView RowFormat::take_sent_scales(Arena& arena, std::int64_t num_rows) const {
  return arena.take(scale_dtype_, {num_rows, num_scales()});
}

TensorView RowFormat::take_scales(Arena& arena, std::initializer_list<std::int64_t> rows) const {
  std::array<std::int64_t, kMaxRank> shape{};
  std::copy(rows.begin(), rows.end(), shape.begin());
  shape[rows.size()] = num_scales();
  TensorView scales = arena.take(scale_dtype_, std::span<const std::int64_t>(shape.data(), rows.size() + 1));
  if (layout_ == ScaleLayout::column_major) {
    const std::size_t last = rows.size();
    scales.strides[last] = scales.shape[last - 1];
    scales.strides[last - 1] = 1;
  }
  return scales;
}

void RowFormat::pack_numbers(const PrepareInput& input, std::int64_t token, void* row) const {
  const ConstTensorView from = input.hidden_states.at(token);
  if (input.apply_router_weight_on_input)
    scale_row(from, router_weight(input.routing, token, 0), TensorView(row, moe_dtype_, {width_}));
  else
    std::copy_n(from.as<std::byte>(), row_bytes(), static_cast<std::byte*>(row));
}

void RowFormat::pack(const PrepareInput& input, std::int64_t token, void* row, const TensorView& scales) const {
  if (!coded_) return pack_numbers(input, token, row);
  const ConstTensorView from = input.hidden_states.at(token);
  const float weight = input.apply_router_weight_on_input ? router_weight(input.routing, token, 0) : 1.0f;
  float weighted[quant::ActivationQuantiser::kPiece];
  const auto load = [&](std::int64_t first, std::int64_t count, float* to) {
    const ConstTensorView piece = from.narrow(0, first, count);
    if (!input.apply_router_weight_on_input) return cpu::load_row_f32(piece, to);
    // The product is a number of the layer's dtype before it is anything else.
    const TensorView rounded(weighted, moe_dtype_, {count});
    scale_row(piece, weight, rounded);
    cpu::load_row_f32(rounded, to);
  };
  quantiser_.encode(width_, load, static_cast<std::uint8_t*>(row), scales.data, scales.stride(0));
}

void RowFormat::copy_scales(const void* from, const TensorView& to) const {
  const std::int64_t bytes = bytes_of(scale_dtype_, 1);
  for (std::int64_t g = 0; g < num_scales(); ++g)
    std::copy_n(static_cast<const std::byte*>(from) + g * bytes, bytes, to.as<std::byte>() + g * to.stride(0) * bytes);
}

bool can_code_rows(QuantKey activations) noexcept {
  return quant::codes_by_row(activations);
}

}  // namespace conclave::dispatch
