// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Scales first, then codes for the scales that the file will have.
#include "io/quantise_projection.hpp"

#include "io/formats/numbers.hpp"

namespace conclave {
namespace {

/// Codes and scales of one projection, in memory of their own.
struct Owned {
  Owned(QuantKey key, std::int64_t rows, std::int64_t cols) {
    const QuantShapes shapes = shapes_of(key, rows, cols);
    const auto tensor = [](const MatrixShape& s) { return Tensor(s.dtype, {s.rows, s.cols}); };
    elements = tensor(shapes.elements);
    scale = tensor(shapes.scale);
    matrix = {key, QuantRole::weights, rows, cols, elements, scale, {}, {}};
    if (shapes.global_scale) matrix.global_scale = global_scale = tensor(*shapes.global_scale);
    if (shapes.zero_point) matrix.zero_point = zero_point = tensor(*shapes.zero_point);
  }
  Tensor elements, scale, global_scale, zero_point;
  QuantMatrix matrix;
};

ConstQuantMatrix as_const(const QuantMatrix& m) {
  return {m.key, m.role, m.rows, m.cols, m.elements, m.scale, m.global_scale, m.zero_point};
}

/// The global scale of all rows, as a reader gets it back from a file that stores its inverse.
float shared_global_scale(QuantKey key, const ConstTensorView& matrix) {
  const Owned all(key, matrix.size(0), matrix.size(1));
  quantise(matrix, all.matrix);
  return 1.0F / (1.0F / *all.global_scale.as<float>());
}

/// The one scale of all rows.
float whole_scale(QuantKey key, const ConstTensorView& matrix) {
  const Owned all(key, matrix.size(0), matrix.size(1));
  quantise(matrix, all.matrix);
  return *all.scale.as<float>();
}

bool is_tensor_wide(QuantKey key) {
  return scheme_of(key).scale->group.rows < 0;
}

}  // namespace

std::vector<std::vector<WrittenTensor>> quantise_projections(const WeightFormat& format, const ConstTensorView& matrix,
                                                             std::int64_t count, DType scale_dtype) {
  const QuantKey key = format.key();
  const std::int64_t rows = matrix.size(0) / count;
  const bool has_global = scheme_of(key).scale2.has_value();
  const float global = has_global ? shared_global_scale(key, matrix) : 0.0F;
  const bool is_wide = is_tensor_wide(key);
  const float whole = is_wide ? whole_scale(key, matrix) : 0.0F;
  std::vector<std::vector<WrittenTensor>> out;
  for (std::int64_t i = 0; i < count; ++i) {
    const ConstTensorView part = matrix.narrow(0, i * rows, rows);
    const Owned owned(key, rows, matrix.size(1));
    if (has_global) *owned.global_scale.as<float>() = global;
    if (is_wide)
      *owned.scale.as<float>() = whole;
    else
      quantise(part, owned.matrix, {.scale = false, .global_scale = has_global});
    if (owned.scale.view().dtype == DType::f32) {
      auto* scales = owned.scale.as<float>();
      for (std::int64_t s = 0; scale_dtype == DType::bf16 && s < owned.scale.view().numel(); ++s)
        scales[s] = rounded_to_bf16(scales[s]);
      quantise(part, owned.matrix, {.scale = true, .global_scale = has_global});
    }
    out.push_back(format.write(as_const(owned.matrix), scale_dtype));
  }
  return out;
}

}  // namespace conclave
