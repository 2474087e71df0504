// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a key and the extents of a matrix. Out: the shapes of its tensors.
#include "base/error.hpp"
#include "quant/format.hpp"

namespace conclave {

QuantShapes shapes_of(QuantKey key, std::int64_t rows, std::int64_t cols, QuantRole role) {
  const quant::Format f = quant::format_of(key, role);
  require(rows >= 0 && cols >= 0, "{}: given a matrix of {} x {}, expected sizes of 0 or more", name_of(key), rows,
          cols);
  require(f.short_last_group || f.group.cols < 0 || cols % f.group.cols == 0,
          "{}: given {} columns, expected a multiple of the group {}", name_of(key), cols, f.group.cols);
  QuantShapes s;
  s.elements = {f.element, rows, f.bits == 4 ? (cols + 1) / 2 : cols};
  s.scale = {f.scale_dtype, f.row_groups(rows), f.col_groups(cols)};
  if (f.global_group) s.global_scale = MatrixShape{DType::f32, quant::Format::count(rows, f.global_group->rows), 1};
  if (f.zero_points) s.zero_point = MatrixShape{DType::u8, s.scale.rows, s.scale.cols};
  return s;
}

}  // namespace conclave
