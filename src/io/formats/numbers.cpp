// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A scale that is no number would poison rows without a sign of it, so it is refused where its name is still known.
#include "io/formats/numbers.hpp"

#include <bit>
#include <cmath>

#include "base/error.hpp"
#include "io/gather.hpp"
#include "quant/elements.hpp"

namespace conclave {

float number_at(const ConstTensorView& view, DType means, std::int64_t index) {
  switch (means) {
    case DType::e8m0:
      return quant::e8m0_to_f32(view.as<std::uint8_t>()[index]);
    case DType::fp8_e4m3:
      return quant::e4m3_to_f32(view.as<std::uint8_t>()[index]);
    default:
      return widened_element(view, index);
  }
}

float rounded_to_bf16(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return value;
  // To nearest, ties to even.
  return std::bit_cast<float>((bits + 0x7FFFU + (bits >> 16 & 1U)) & 0xFFFF0000U);
}

void store_number(float value, const Tensor& to, std::int64_t index) {
  if (to.view().dtype == DType::f32)
    to.as<float>()[index] = value;
  else
    to.as<std::uint16_t>()[index] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}

float checked_scale(const StoredProjection& from, std::size_t spec, DType means, std::int64_t index) {
  const float value = number_at(from.tensors[spec].view, means, index);
  if (!(std::isfinite(value) && value >= 0)) [[unlikely]]
    fail(ErrorKind::bad_file, "{}: element {}: given {}, expected a finite scale of 0 or more", from.where(spec), index,
         value);
  return value;
}

void read_scales(const StoredProjection& from, std::size_t spec, DType means, const TensorView& out) {
  const ConstTensorView& stored = from.tensors[spec].view;
  for (std::int64_t r = 0; r < out.size(0); ++r)
    for (std::int64_t c = 0; c < out.size(1); ++c) {
      const std::int64_t index = r * out.size(1) + c;
      const std::int64_t at = r * out.stride(0) + c * out.stride(1);
      const float value = checked_scale(from, spec, means, index);
      if (out.dtype == DType::f32)
        out.as<float>()[at] = value;
      else
        out.as<std::uint8_t>()[at] = stored.as<std::uint8_t>()[index];
    }
}

}  // namespace conclave
