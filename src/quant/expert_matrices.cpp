// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Views: one expert, its rows, its scales with the extents that a caller may leave out put back.
#include "quant/expert_matrices.hpp"

namespace conclave::quant {
namespace {

ConstTensorView matrix_view(const ConstTensorView& like, const void* data, DType dtype, std::int64_t rows,
                            std::int64_t cols, std::int64_t row_stride, std::int64_t col_stride) {
  ConstTensorView v(data, dtype, {rows, cols}, like.device);
  v.strides[0] = row_stride;
  v.strides[1] = col_stride;
  return v;
}

/// [rows, bytes] of one expert; u8 stands for whatever the bytes are.
ConstTensorView bytes_of_expert(const ConstTensorView& elements, std::int64_t expert) {
  const ConstTensorView e = elements.at(expert);
  const bool halves = e.dtype == DType::fp4_e2m1;
  return matrix_view(e, e.data, DType::u8, e.size(0), halves ? (e.size(1) + 1) / 2 : e.size(1),
                     halves ? e.stride(0) / 2 : e.stride(0), 1);
}

/// [rows, cols] of one expert out of a view whose trailing extents of 1 may be missing.
ConstTensorView scales_of_expert(const ConstTensorView& all, DType dtype, std::int64_t expert, std::int64_t rows,
                                 std::int64_t cols) {
  const std::int64_t offset = all.rank > 0 ? expert * all.stride(0) : 0;
  const auto* data = all.as<std::byte>() == nullptr ? nullptr : all.as<std::byte>() + bytes_of(dtype, offset);
  return matrix_view(all, data, dtype, rows, cols, all.rank > 1 ? all.stride(1) : 0, all.rank > 2 ? all.stride(2) : 0);
}

/// The rows of a slice; a view of one row (a tensor-wide scale) is narrowed to that of the part.
ConstTensorView sliced(const ConstTensorView& v, RowSlice rows) {
  ConstTensorView s = v.narrow(0, rows.first, v.size(0) / 2);
  s.strides[0] *= rows.step;
  return s;
}

class Builder {
 public:
  Builder(QuantKey key, const ExpertTensors& tensors, std::int64_t rows, std::int64_t cols, std::int64_t expert)
      : format_(format_of(key, QuantRole::weights)), tensors_(tensors), split_(has_split_scales(format_, tensors)) {
    const std::int64_t tensor_wide = split_ ? 2 : 1;
    whole_ = {key, QuantRole::weights, rows, cols, bytes_of_expert(tensors.elements, expert), {}, {}, {}};
    const std::int64_t groups = format_.scale_is_tensor_wide() ? tensor_wide : format_.row_groups(rows);
    const auto view = [&](const std::optional<ConstTensorView>& all, DType dtype, std::int64_t r, std::int64_t c) {
      return all ? scales_of_expert(*all, dtype, expert, r, c) : ConstTensorView();
    };
    whole_.scale = view(tensors.scale, format_.scale_dtype, groups, format_.col_groups(cols));
    whole_.global_scale = view(tensors.global_scale, DType::f32, tensor_wide, 1);
    whole_.zero_point = view(tensors.zero_point, DType::u8, groups, format_.col_groups(cols));
  }

  ExpertMatrices build(W13Layout layout, std::int64_t intermediate_size) const {
    if (!split_) return {{ExpertMatrix{whole_}}, 1};
    ExpertMatrices both;
    both.count = 2;
    for (int part = 0; part < 2; ++part)
      both.parts[static_cast<std::size_t>(part)] = slice(part, gate_or_up_rows(layout, part, intermediate_size));
    return both;
  }

 private:
  ExpertMatrix slice(int part, RowSlice rows) const {
    ExpertMatrix m{whole_, rows.first, rows.step};
    m.matrix.rows = whole_.rows / 2;
    m.matrix.elements = sliced(whole_.elements, rows);
    m.matrix.scale = format_.scale_is_tensor_wide() ? whole_.scale.narrow(0, part, 1) : sliced(whole_.scale, rows);
    if (format_.global_group) m.matrix.global_scale = whole_.global_scale.narrow(0, part, 1);
    return m;
  }

  Format format_;
  const ExpertTensors& tensors_;
  bool split_;
  ConstQuantMatrix whole_;
};

}  // namespace

ExpertTensors w13_tensors(const ExpertWeights& w) {
  return {w.w13, w.w13_scale, w.w13_global_scale, w.w13_zero_point};
}
ExpertTensors w2_tensors(const ExpertWeights& w) {
  return {w.w2, w.w2_scale, w.w2_global_scale, w.w2_zero_point};
}

bool has_split_scales(const Format& format, const ExpertTensors& tensors) noexcept {
  const auto& wide = format.scale_is_tensor_wide() ? tensors.scale : tensors.global_scale;
  return wide && wide->rank > 1 && wide->size(1) == 2 && (format.scale_is_tensor_wide() || format.global_group);
}

RowSlice gate_or_up_rows(W13Layout layout, int part, std::int64_t intermediate_size) noexcept {
  if (layout == W13Layout::interleaved) return {part, 2};
  const bool first_half = (layout == W13Layout::gate_up) == (part == 0);
  return {first_half ? 0 : intermediate_size, 1};
}

ExpertMatrices w13_matrices(const MoeConfig& moe, QuantKey key, const ExpertWeights& weights, std::int64_t expert) {
  const ExpertTensors tensors = w13_tensors(weights);
  const std::int64_t rows = w13_rows(is_gated(moe.activation), moe.intermediate_size);
  return Builder(key, tensors, rows, moe.expert_width(), expert).build(moe.w13_layout, moe.intermediate_size);
}

ExpertMatrices w2_matrices(const MoeConfig& moe, QuantKey key, const ExpertWeights& weights, std::int64_t expert) {
  const ExpertTensors tensors = w2_tensors(weights);
  return Builder(key, tensors, moe.expert_width(), moe.intermediate_size, expert)
      .build(W13Layout::gate_up, moe.intermediate_size);
}

}  // namespace conclave::quant
