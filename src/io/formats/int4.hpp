// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: 4-bit integers as GPTQ and AWQ unpack to. Out: the library's halves of bytes, or numbers.
#pragma once

#include "io/formats/weight_format.hpp"

namespace conclave {

/// The key with this many columns a group (-1: the whole row); none if there is none.
QuantKey int4_key(std::int64_t group_size, bool zero_points) noexcept;

/// value[r, c] = (code[r, c] - zero[r, g]) * scale[r, g] with g = group_of[c]
struct Int4Matrix {
  Int4Matrix(std::int64_t num_rows, std::int64_t num_cols, std::int64_t num_groups);

  std::int64_t rows, cols, groups;
  std::vector<std::uint8_t> codes;     ///< [rows, cols], 0 to 15
  std::vector<std::uint8_t> zeros;     ///< [rows, groups]
  std::vector<float> scales;           ///< [rows, groups]
  std::vector<std::int64_t> group_of;  ///< [cols]

  /// Into the tensors of an int4 key. group_of must be in order.
  void write(const QuantMatrix& out) const;
  void decode(const TensorView& out) const;
};

}  // namespace conclave
