// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Plain loops: this runs once, at load.
#include "io/formats/int4.hpp"

namespace conclave {

QuantKey int4_key(std::int64_t group_size, bool zero_points) noexcept {
  switch (group_size) {
    case -1:
      return zero_points ? QuantKey::int4_channel_zp : QuantKey::int4_channel;
    case 32:
      return zero_points ? QuantKey::int4_group32_zp : QuantKey::int4_group32;
    case 64:
      return zero_points ? QuantKey::int4_group64_zp : QuantKey::int4_group64;
    case 128:
      return zero_points ? QuantKey::int4_group128_zp : QuantKey::int4_group128;
    default:
      return QuantKey::none;
  }
}

Int4Matrix::Int4Matrix(std::int64_t num_rows, std::int64_t num_cols, std::int64_t num_groups)
    : rows(num_rows),
      cols(num_cols),
      groups(num_groups),
      codes(static_cast<std::size_t>(rows * cols)),
      zeros(static_cast<std::size_t>(rows * groups)),
      scales(static_cast<std::size_t>(rows * groups)),
      group_of(static_cast<std::size_t>(cols)) {}

void Int4Matrix::write(const QuantMatrix& out) const {
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::uint8_t* row = codes.data() + r * cols;
    auto* bytes = out.elements.as<std::uint8_t>() + r * out.elements.stride(0);
    for (std::int64_t c = 0; c < cols; c += 2)
      bytes[c / 2] = static_cast<std::uint8_t>(row[c] | (c + 1 < cols ? row[c + 1] : 0) << 4);
    for (std::int64_t g = 0; g < groups; ++g) {
      const auto at = static_cast<std::size_t>(r * groups + g);
      out.scale.as<float>()[r * out.scale.stride(0) + g * out.scale.stride(1)] = scales[at];
      if (out.zero_point.data != nullptr)
        out.zero_point.as<std::uint8_t>()[r * out.zero_point.stride(0) + g * out.zero_point.stride(1)] = zeros[at];
    }
  }
}

void Int4Matrix::decode(const TensorView& out) const {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) {
      const auto group = static_cast<std::size_t>(r * groups + group_of[static_cast<std::size_t>(c)]);
      const int steps = codes[static_cast<std::size_t>(r * cols + c)] - zeros[group];
      out.as<float>()[r * out.stride(0) + c * out.stride(1)] = static_cast<float>(steps) * scales[group];
    }
}

}  // namespace conclave
