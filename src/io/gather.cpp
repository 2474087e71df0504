// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Copies at load time. Transposing goes by tiles, so that both sides stay within a few pages at a time.
#include "io/gather.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.hpp"

namespace conclave {
namespace {

/// 64 x 64 elements of 2 bytes: 8 KiB of each side, which a first-level cache holds.
constexpr std::int64_t kTile = 64;

template <class Element>
void transpose_as(const Element* from, Element* to, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r0 = 0; r0 < rows; r0 += kTile)
    for (std::int64_t c0 = 0; c0 < cols; c0 += kTile)
      for (std::int64_t r = r0; r < std::min(rows, r0 + kTile); ++r)
        for (std::int64_t c = c0; c < std::min(cols, c0 + kTile); ++c) to[c * rows + r] = from[r * cols + c];
}

float from_f16(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 31) return fraction != 0 ? std::nanf("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
}

}  // namespace

void transpose(const ConstTensorView& from, const TensorView& to) {
  const std::int64_t rows = from.size(0);
  const std::int64_t cols = from.size(1);
  switch (bits_of(from.dtype)) {
    case 8:
      return transpose_as(from.as<std::uint8_t>(), to.as<std::uint8_t>(), rows, cols);
    case 16:
      return transpose_as(from.as<std::uint16_t>(), to.as<std::uint16_t>(), rows, cols);
    case 32:
      return transpose_as(from.as<std::uint32_t>(), to.as<std::uint32_t>(), rows, cols);
    case 64:
      return transpose_as(from.as<std::uint64_t>(), to.as<std::uint64_t>(), rows, cols);
    default:
      fail(ErrorKind::invalid_argument, "transpose: given {}, expected whole bytes", to_string(from));
  }
}

void copy(const ConstTensorView& from, const TensorView& to) {
  if (from.bytes() > 0) std::memcpy(to.data, from.data, static_cast<std::size_t>(from.bytes()));
}

float widened_element(const ConstTensorView& from, std::int64_t index) {
  switch (from.dtype) {
    case DType::f32:
      return from.as<float>()[index];
    case DType::bf16:
      return std::bit_cast<float>(static_cast<std::uint32_t>(from.as<std::uint16_t>()[index]) << 16);
    case DType::f16:
      return from_f16(from.as<std::uint16_t>()[index]);
    default:
      fail(ErrorKind::invalid_argument, "widen: given {}, expected f32, bf16 or f16", to_string(from));
  }
}

Tensor widened(const ConstTensorView& from) {
  const auto dims = std::span(from.shape).first(static_cast<std::size_t>(from.rank));
  Tensor out(DType::f32, dims);
  for (std::int64_t i = 0; i < from.numel(); ++i) out.as<float>()[i] = widened_element(from, i);
  return out;
}

}  // namespace conclave
