// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: codes and scales. Out: rows of f32.
#include "quant/matrix.hpp"

#include <vector>

#include "base/error.hpp"
#include "base/tensor_format.hpp"
#include "cpu/float_convert.hpp"
#include "quant/scales.hpp"

namespace conclave::quant {
namespace {

void check_view(const char* what, QuantKey key, const ConstTensorView& view, const std::optional<MatrixShape>& shape) {
  if (!shape) {
    require(view.data == nullptr, "{} of {}: given {}, expected none", what, name_of(key), view);
    return;
  }
  const bool same_type = view.dtype == shape->dtype || (view.dtype == DType::u8 && bits_of(shape->dtype) == 8);
  require(view.rank == 2 && view.size(0) == shape->rows && view.size(1) == shape->cols && same_type,
          "{} of {}: given {}, expected {}[{}, {}]", what, name_of(key), view, name_of(shape->dtype), shape->rows,
          shape->cols);
  require(view.data != nullptr || view.numel() == 0, "{} of {}: given null data", what, name_of(key));
}

}  // namespace

void check_matrix(const ConstQuantMatrix& m) {
  const QuantShapes shapes = shapes_of(m.key, m.rows, m.cols, m.role);
  check_view("elements", m.key, m.elements, shapes.elements);
  require(m.elements.size(1) <= 1 || m.elements.stride(1) == 1, "elements of {}: column stride {}, expected 1",
          name_of(m.key), m.elements.stride(1));
  check_view("scale", m.key, m.scale, shapes.scale);
  check_view("global_scale", m.key, m.global_scale, shapes.global_scale);
  check_view("zero_point", m.key, m.zero_point, shapes.zero_point);
}

void dequantise_row(const Format& f, const ConstQuantMatrix& m, std::int64_t row, float* out) noexcept {
  const auto* codes = m.elements.as<std::uint8_t>() + row * m.elements.stride(0);
  const std::int64_t scale_row = f.group.rows < 0 ? 0 : row / f.group.rows;
  const float global =
      f.global_group ? scale_at(m.global_scale, DType::f32, f.global_group->rows < 0 ? 0 : row, 0) : 1.0f;
  const std::int64_t width = f.group_cols(m.cols);
  for (std::int64_t first = 0, g = 0; first < m.cols; first += width, ++g) {
    GroupScale scale{scale_at(m.scale, f.scale_dtype, scale_row, g) * global, 8};
    if (f.zero_points)
      scale.zero_point =
          m.zero_point.as<std::uint8_t>()[scale_row * m.zero_point.stride(0) + g * m.zero_point.stride(1)];
    f.family->decode(codes, first, std::min(width, m.cols - first), scale, out + first);
  }
}

}  // namespace conclave::quant

namespace conclave {

void dequantise(const ConstQuantMatrix& in, const TensorView& out) {
  quant::check_matrix(in);
  require(out.rank == 2 && out.size(0) == in.rows && out.size(1) == in.cols && is_compute_dtype(out.dtype),
          "dequantised matrix: given {}, expected f32, bf16 or f16 of [{}, {}]", out, in.rows, in.cols);
  const quant::Format f = quant::format_of(in.key, in.role);
  std::vector<float> row(static_cast<std::size_t>(in.cols));
  for (std::int64_t r = 0; r < in.rows; ++r) {
    quant::dequantise_row(f, in, r, row.data());
    cpu::store_row_f32(row.data(), out.at(r));
  }
}

}  // namespace conclave
