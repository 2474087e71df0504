// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a quantisation key and a role. Out: everything that coding a matrix needs to know about it, from one table.
#pragma once

#include "conclave/quantise.hpp"
#include "conclave/support.hpp"
#include "quant/family.hpp"

namespace conclave::quant {

struct Format {
  QuantKey key = QuantKey::none;
  QuantRole role = QuantRole::weights;
  const Family* family = nullptr;
  int bits = 0;
  DType element = DType::u8;  ///< u8 where two elements share a byte.
  DType scale_dtype = DType::f32;
  GroupShape group;                          ///< -1: the full extent
  std::optional<GroupShape> global_group{};  ///< nvfp4
  bool zero_points = false;
  bool short_last_group = false;  ///< Else the group must divide the columns.

  bool scale_is_tensor_wide() const noexcept { return group.rows < 0; }
  std::int64_t row_groups(std::int64_t rows) const noexcept { return count(rows, group.rows); }
  std::int64_t col_groups(std::int64_t cols) const noexcept { return count(cols, group.cols); }
  /// Columns of a group; the whole row where the group is.
  std::int64_t group_cols(std::int64_t cols) const noexcept { return group.cols < 0 ? cols : group.cols; }

  static std::int64_t count(std::int64_t extent, std::int64_t group) noexcept {
    return group < 0 ? 1 : (extent + group - 1) / group;
  }
};

/// Throws Error for none and for a value that is no key.
Format format_of(QuantKey key, QuantRole role);

/// May tensors of this role have the key at all? `none` may.
Support supports_key(QuantKey key, QuantRole role);
/// And rows of this many columns? `what` names them in the reason: "hidden_size".
Support supports_cols(QuantKey key, QuantRole role, std::string_view what, std::int64_t cols);

/// The scale is part of the checkpoint: a1_scale, a2_scale.
bool has_static_scale(QuantKey activations) noexcept;
/// One scale for all rows of a batch, computed from them.
bool spans_the_batch(QuantKey activations) noexcept;

}  // namespace conclave::quant
