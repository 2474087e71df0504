// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What a row of activations is between prepare and experts: numbers of the layer's dtype, or, where the experts take
// them, codes of quant.activations with the scales of their groups beside them. Settled with the experts once, by
// negotiate(); then everything here is a function of the problem.
#pragma once

#include <cstdint>

#include "conclave/prepare_finalize.hpp"
#include "quant/activations.hpp"

namespace conclave::dispatch {

class RowFormat {
 public:
  explicit RowFormat(const Problem& problem);
  /// Codes, if the problem has a format that rows can carry, and these experts do not do it themselves.
  void negotiate(const Experts& experts);

  /// Throws Error if the input asks for another form than was settled.
  void check(const PrepareInput& input) const;

  bool coded() const noexcept { return coded_; }
  DType dtype() const noexcept { return dtype_; }
  std::int64_t columns() const noexcept { return columns_; }
  std::int64_t row_bytes() const noexcept { return bytes_of(dtype_, columns_); }
  /// Of the scales of one row; 0 where there are none.
  std::int64_t num_scales() const noexcept { return coded_ ? num_scales_ : 0; }
  std::int64_t scale_bytes() const noexcept { return bytes_of(scale_dtype_, num_scales()); }

  /// [..., columns] of `shape` rows.
  TensorView take_rows(Arena& arena, std::initializer_list<std::int64_t> rows) const;
  /// [rows, scales], one row behind the other: as they travel.
  TensorView take_sent_scales(Arena& arena, std::int64_t num_rows) const;
  /// [rows, scales] or [experts, rows, scales] in the layout that the experts asked for.
  TensorView take_scales(Arena& arena, std::initializer_list<std::int64_t> rows) const;
  /// False: what has arrived is what experts take.
  bool transposes() const noexcept { return coded_ && layout_ == ScaleLayout::column_major; }

  /// Row `token` of the input, its router weight on it where that belongs there. `scales`: as a row of them travels, or
  /// a row of take_scales(); not looked at without codes.
  void pack(const PrepareInput& input, std::int64_t token, void* row, const TensorView& scales) const;
  /// One row of scales as it travelled to a row of take_scales().
  void copy_scales(const void* from, const TensorView& to) const;

 private:
  void pack_numbers(const PrepareInput& input, std::int64_t token, void* row) const;

  DType moe_dtype_;
  std::int64_t width_;
  QuantKey key_;
  quant::ActivationQuantiser quantiser_;
  bool coded_ = false;
  DType dtype_;
  std::int64_t columns_;
  DType scale_dtype_ = DType::f32;
  std::int64_t num_scales_ = 0;
  ScaleLayout layout_ = ScaleLayout::row_major;
};

/// True if every prepare that uses RowFormat can make codes of this key.
bool can_code_rows(QuantKey activations) noexcept;

}  // namespace conclave::dispatch
