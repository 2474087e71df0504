// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: one expert's matrix as a caller has it. Out: which of its rows is which column of a panel.
#pragma once

#include <cstddef>

#include "experts/activation.hpp"
#include "experts/cpu/engine.hpp"

namespace conclave::experts::grouped {

/// The rows of one expert's matrix as a caller has it, and which of them are the columns of a panel.
struct SourceMatrix {
  ConstTensorView matrix;  ///< [rows, k], or [rows, k / 2] where two codes share a byte
  const Engine* engine;
  std::int64_t columns;  ///< Of the product: I (gated or not) or H.
  bool gated;
  W13Layout layout;

  std::int64_t half() const { return engine->panel_columns / 2; }
  std::int64_t columns_per_panel() const { return gated ? half() : engine->panel_columns; }

  /// Row behind column `j` of panel `p`; -1 where the column only pads.
  std::int64_t row(std::int64_t p, std::int64_t j) const {
    const bool is_up = gated && j >= half();
    const std::int64_t column = p * columns_per_panel() + (is_up ? j - half() : j);
    if (column >= columns) return -1;
    const W13Rows rows = w13_rows_of(layout, gated, column, columns);
    return is_up ? rows.up : rows.gate;
  }
  const std::byte* address(std::int64_t row) const {
    return static_cast<const std::byte*>(matrix.data) + bytes_of(matrix.dtype, row * matrix.stride(0));
  }
};

}  // namespace conclave::experts::grouped
