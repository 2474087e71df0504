// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a view of scales of any type. Out: one of them as f32, and back.
#pragma once

#include "conclave/tensor.hpp"
#include "quant/elements.hpp"

namespace conclave::quant {

/// `dtype` is what the bytes mean; u8 views may hold them.
inline float scale_at(const ConstTensorView& scales, DType dtype, std::int64_t row, std::int64_t col) noexcept {
  const std::int64_t at = row * scales.stride(0) + col * scales.stride(1);
  if (dtype == DType::f32) return scales.as<float>()[at];
  const std::uint8_t code = scales.as<std::uint8_t>()[at];
  return dtype == DType::e8m0 ? e8m0_to_f32(code) : e4m3_to_f32(code);
}

inline void set_scale(const TensorView& scales, DType dtype, std::int64_t row, std::int64_t col, float value) noexcept {
  const std::int64_t at = row * scales.stride(0) + col * scales.stride(1);
  if (dtype == DType::f32) {
    scales.as<float>()[at] = value;
  } else {
    scales.as<std::uint8_t>()[at] = dtype == DType::e8m0 ? f32_to_e8m0(value) : f32_to_e4m3(value);
  }
}

}  // namespace conclave::quant
