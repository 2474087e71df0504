// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// bf16 and f16 <-> f32. Every variant gives the same bits: round to nearest, ties to even; f16 overflows to infinity
// and keeps its subnormals; a NaN stays a NaN of the same sign, and a narrowed one is quiet.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "conclave/config.hpp"
#include "conclave/tensor.hpp"

namespace conclave::cpu {

inline float bf16_to_f32(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t f32_to_bf16(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  // A NaN whose payload sits in the low half would be rounded to infinity: set the quiet bit instead of rounding.
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  // Adding just under half a unit, plus one if the unit's last bit is odd, makes ties go to even.
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

float f16_to_f32(std::uint16_t bits) noexcept;
std::uint16_t f32_to_f16(float value) noexcept;

/// `count` consecutive elements of type `dtype` (f32, bf16, f16) at `from` as f32, by the fastest unit there is.
void load_f32(const void* from, DType dtype, std::int64_t count, float* to) noexcept;
/// The inverse, rounding.
void store_f32(const float* from, DType dtype, std::int64_t count, void* to) noexcept;

/// A view of rank 1 with any stride. `to` holds row.size(0) elements.
void load_row_f32(const ConstTensorView& row, float* to) noexcept;
void store_row_f32(const float* from, const TensorView& row) noexcept;

/// Element `index` of a buffer of `dtype`.
inline float load_element(const void* from, DType dtype, std::int64_t index) noexcept {
  if (dtype == DType::f32) return static_cast<const float*>(from)[index];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(from)[index];
  return dtype == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}
inline void store_element(float value, DType dtype, std::int64_t index, void* to) noexcept {
  if (dtype == DType::f32) {
    static_cast<float*>(to)[index] = value;
  } else {
    static_cast<std::uint16_t*>(to)[index] = dtype == DType::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
  }
}

/// One way to convert whole rows: the functions of one instruction set.
struct FloatConverters {
  const char* name;
  bool (*runs_on)(const CpuFeatures& cpu);
  void (*bf16_to_f32)(const std::uint16_t* from, std::int64_t count, float* to);
  void (*f16_to_f32)(const std::uint16_t* from, std::int64_t count, float* to);
  void (*f32_to_bf16)(const float* from, std::int64_t count, std::uint16_t* to);
  void (*f32_to_f16)(const float* from, std::int64_t count, std::uint16_t* to);
};

/// Widest first; the last runs everywhere.
std::span<const FloatConverters> float_converters() noexcept;

}  // namespace conclave::cpu
