// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: elements of f32, bf16 or f16. Out: the same values in another of these types. Plain C++, and the choice among the
// instruction sets that the list of this build names.
#include "cpu/float_convert.hpp"

#include <algorithm>

#include "cpu/features.hpp"
#include "cpu/variants.hpp"

namespace conclave::cpu {
namespace {

constexpr std::uint32_t kF32Infinity = 0x7F800000U;
/// The exponent biases of f32 and f16 differ by 112.
constexpr std::uint32_t kRebias = 112U << 23;

const FloatConverters& best() noexcept {
  static const FloatConverters& chosen = first_that_runs(float_converters());
  return chosen;
}

}  // namespace

void bf16_to_f32_generic(const std::uint16_t* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = bf16_to_f32(from[i]);
}
void f16_to_f32_generic(const std::uint16_t* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = f16_to_f32(from[i]);
}
void f32_to_bf16_generic(const float* from, std::int64_t count, std::uint16_t* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = f32_to_bf16(from[i]);
}
void f32_to_f16_generic(const float* from, std::int64_t count, std::uint16_t* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = f32_to_f16(from[i]);
}

float f16_to_f32(std::uint16_t bits) noexcept {
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t magnitude = bits & 0x7FFFU;
  if (magnitude >= 0x7C00U) {  // Infinity, or NaN: its payload moves up and the quiet bit is set.
    const std::uint32_t quiet = magnitude > 0x7C00U ? 0x400000U : 0U;
    return std::bit_cast<float>(sign | kF32Infinity | ((magnitude & 0x3FFU) << 13) | quiet);
  }
  if (magnitude < 0x400U) {  // Subnormal: a count of 2^-24, exact in f32.
    const float value = static_cast<float>(magnitude) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + kRebias));
}

std::uint16_t f32_to_f16(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > kF32Infinity) return static_cast<std::uint16_t>(sign | 0x7E00U | ((magnitude >> 13) & 0x3FFU));
  // 65520 is halfway between the largest f16 and the next step, which is infinity's and even.
  if (magnitude >= std::bit_cast<std::uint32_t>(65520.0F)) return static_cast<std::uint16_t>(sign | 0x7C00U);
  if (magnitude < std::bit_cast<std::uint32_t>(0x1p-14F)) {
    // 0.5 has the f16 subnormal step as its last bit: the addition rounds to that step, ties to even.
    const float rounded = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign |
                                      (std::bit_cast<std::uint32_t>(rounded) - std::bit_cast<std::uint32_t>(0.5F)));
  }
  const std::uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded - kRebias) >> 13));
}

void load_f32(const void* from, DType dtype, std::int64_t count, float* to) noexcept {
  if (dtype == DType::f32) {
    std::copy_n(static_cast<const float*>(from), count, to);
  } else if (dtype == DType::bf16) {
    best().bf16_to_f32(static_cast<const std::uint16_t*>(from), count, to);
  } else {
    best().f16_to_f32(static_cast<const std::uint16_t*>(from), count, to);
  }
}

void store_f32(const float* from, DType dtype, std::int64_t count, void* to) noexcept {
  if (dtype == DType::f32) {
    std::copy_n(from, count, static_cast<float*>(to));
  } else if (dtype == DType::bf16) {
    best().f32_to_bf16(from, count, static_cast<std::uint16_t*>(to));
  } else {
    best().f32_to_f16(from, count, static_cast<std::uint16_t*>(to));
  }
}

void load_row_f32(const ConstTensorView& row, float* to) noexcept {
  const std::int64_t count = row.size(0);
  if (row.stride(0) == 1 || count <= 1) return load_f32(row.data, row.dtype, count, to);
  for (std::int64_t i = 0; i < count; ++i) to[i] = load_element(row.data, row.dtype, i * row.stride(0));
}

void store_row_f32(const float* from, const TensorView& row) noexcept {
  const std::int64_t count = row.size(0);
  if (row.stride(0) == 1 || count <= 1) return store_f32(from, row.dtype, count, row.data);
  for (std::int64_t i = 0; i < count; ++i) store_element(from[i], row.dtype, i * row.stride(0), row.data);
}

}  // namespace conclave::cpu
