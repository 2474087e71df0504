// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Conversions by chunks of f32: load a chunk, store a chunk. Rows are shared among the threads.
#include "convert.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string>

#include "error.hpp"

namespace conclave::cli {
namespace {

float bf16_to_f32(std::uint16_t x) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16);
}

std::uint16_t f32_to_bf16(float x) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);  // stays NaN
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

float f16_to_f32(std::uint16_t x) noexcept {
  const std::uint32_t sign = (x & 0x8000U) << 16, magnitude = x & 0x7fffU;
  if (magnitude >= 0x7c00U) return std::bit_cast<float>(sign | 0x7f800000U | ((magnitude & 0x3ffU) << 13));
  if (magnitude >= 0x400U) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000U));
  const float value = static_cast<float>(magnitude) * 0x1p-24F;
  return sign != 0 ? -value : value;
}

std::uint16_t f32_to_f16(float x) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000U, magnitude = bits & 0x7fffffffU;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000U) {
    half = 0x7e00U;
  } else if (magnitude >= 0x477ff000U) {  // 65520 and more round past the largest finite value
    half = 0x7c00U;
  } else if (magnitude < 0x38800000U) {
    // Subnormal: 0.5 has the spacing 2^-24 of f16's subnormals, so that the addition rounds as f16 would.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U;
  } else {
    half = (magnitude + 0xfffU + ((magnitude >> 13) & 1U) - 0x38000000U) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

template <class T>
T load(const std::byte* at, std::int64_t i) noexcept {
  T value;  // memcpy: tensors of a file need not be aligned to their element
  std::memcpy(&value, at + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

void load_floats(const std::byte* from, DType dtype, std::int64_t n, float* to) noexcept {
  if (dtype == DType::f64)
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(load<double>(from, i));
  else if (dtype == DType::bf16)
    for (std::int64_t i = 0; i < n; ++i) to[i] = bf16_to_f32(load<std::uint16_t>(from, i));
  else if (dtype == DType::f16)
    for (std::int64_t i = 0; i < n; ++i) to[i] = f16_to_f32(load<std::uint16_t>(from, i));
  else
    std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
}

void store_floats(const float* from, std::int64_t n, DType dtype, std::byte* to) noexcept {
  if (dtype == DType::f32) {
    std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  auto* out = reinterpret_cast<std::uint16_t*>(to);
  for (std::int64_t i = 0; i < n; ++i) out[i] = dtype == DType::bf16 ? f32_to_bf16(from[i]) : f32_to_f16(from[i]);
}

/// Byte offset of row `row` (all dimensions but the last) of a strided view.
std::int64_t row_offset(const ConstTensorView& view, std::int64_t row) noexcept {
  std::int64_t elements = 0;
  for (int d = view.rank - 2; d >= 0; --d) {
    elements += row % view.size(d) * view.stride(d);
    row /= view.size(d);
  }
  return bytes_of(view.dtype, elements);
}

void convert_row(const std::byte* from, DType from_type, std::byte* to, DType to_type, std::int64_t n) noexcept {
  constexpr std::int64_t kChunk = 1024;  // 4 KiB of f32 stay in L1
  std::array<float, kChunk> chunk;
  for (std::int64_t i = 0; i < n; i += kChunk) {
    const std::int64_t length = std::min(kChunk, n - i);
    load_floats(from + bytes_of(from_type, i), from_type, length, chunk.data());
    store_floats(chunk.data(), length, to_type, to + bytes_of(to_type, i));
  }
}

std::int32_t to_id(std::int64_t value) noexcept {
  constexpr std::int64_t kLow = std::numeric_limits<std::int32_t>::min(),
                         kHigh = std::numeric_limits<std::int32_t>::max();
  return static_cast<std::int32_t>(std::clamp(value, kLow, kHigh));
}

std::int64_t load_integer(const std::byte* at, DType dtype, std::int64_t i) {
  switch (dtype) {
    case DType::i64:
      return load<std::int64_t>(at, i);
    case DType::u64:
      return static_cast<std::int64_t>(
          std::min<std::uint64_t>(load<std::uint64_t>(at, i), std::numeric_limits<std::int64_t>::max()));
    case DType::i32:
      return load<std::int32_t>(at, i);
    case DType::u32:
      return load<std::uint32_t>(at, i);
    case DType::i16:
      return load<std::int16_t>(at, i);
    case DType::u16:
      return load<std::uint16_t>(at, i);
    case DType::i8:
      return load<std::int8_t>(at, i);
    default:
      return load<std::uint8_t>(at, i);
  }
}

std::span<const std::int64_t> shape_of(const ConstTensorView& view) {
  return {view.shape.data(), static_cast<std::size_t>(view.rank)};
}

}  // namespace

bool is_convertible(DType dtype) noexcept {
  return dtype == DType::f64 || is_compute_dtype(dtype);
}

bool is_integer(DType dtype) noexcept {
  switch (dtype) {
    case DType::i64:
    case DType::i32:
    case DType::i16:
    case DType::i8:
    case DType::u64:
    case DType::u32:
    case DType::u16:
    case DType::u8:
      return true;
    default:
      return false;
  }
}

Tensor convert(const ConstTensorView& view, DType to, const char* what, Executor& executor) {
  if (!is_convertible(view.dtype)) bad_input("{}: given {}, expected f64, f32, bf16 or f16", what, to_string(view));
  const std::int64_t columns = view.rank > 0 ? view.size(-1) : 1;
  if (view.rank > 0 && columns > 1 && view.stride(-1) != 1)
    bad_input("{}: given {}, expected contiguous columns", what, to_string(view));
  Tensor result(to, shape_of(view));
  const std::int64_t rows = view.numel() == 0 ? 0 : view.numel() / columns;
  const auto* from = static_cast<const std::byte*>(view.data);
  auto* out = static_cast<std::byte*>(result.view().data);
  const std::int64_t threads = executor.num_threads();
  executor.parallel([&](int thread) {
    for (std::int64_t row = rows * thread / threads; row < rows * (thread + 1) / threads; ++row)
      convert_row(from + row_offset(view, row), view.dtype, out + bytes_of(to, row * columns), to, columns);
  });
  return result;
}

Tensor convert_ids(const ConstTensorView& view, const char* what) {
  if (!is_integer(view.dtype) || !view.is_contiguous())
    bad_input("{}: given {}, expected contiguous integers", what, to_string(view));
  Tensor result(DType::i32, shape_of(view));
  auto* out = result.as<std::int32_t>();
  const auto* from = static_cast<const std::byte*>(view.data);
  for (std::int64_t i = 0; i < view.numel(); ++i) out[i] = to_id(load_integer(from, view.dtype, i));
  return result;
}

}  // namespace conclave::cli
