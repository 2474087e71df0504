// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The dtype codes of the safetensors format, all of them.
#include <array>
#include <utility>

#include "io/safetensors_header.hpp"

namespace conclave {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 22> kDtypeCodes{{
    {DType::boolean, "BOOL"},
    {DType::u8, "U8"},
    {DType::i8, "I8"},
    {DType::i16, "I16"},
    {DType::u16, "U16"},
    {DType::f16, "F16"},
    {DType::bf16, "BF16"},
    {DType::i32, "I32"},
    {DType::u32, "U32"},
    {DType::f32, "F32"},
    {DType::f64, "F64"},
    {DType::i64, "I64"},
    {DType::u64, "U64"},
    {DType::c64, "C64"},
    {DType::fp8_e4m3, "F8_E4M3"},
    {DType::fp8_e5m2, "F8_E5M2"},
    {DType::fp8_e4m3fnuz, "F8_E4M3FNUZ"},
    {DType::fp8_e5m2fnuz, "F8_E5M2FNUZ"},
    {DType::e8m0, "F8_E8M0"},
    {DType::fp4_e2m1, "F4"},
    {DType::fp6_e2m3, "F6_E2M3"},
    {DType::fp6_e3m2, "F6_E3M2"},
}};

}  // namespace

std::string_view safetensors_code(DType dtype) noexcept {
  for (const auto& [value, code] : kDtypeCodes)
    if (value == dtype) return code;
  return "?";
}

std::optional<DType> dtype_from_safetensors_code(std::string_view code) noexcept {
  for (const auto& [value, c] : kDtypeCodes)
    if (c == code) return value;
  return std::nullopt;
}

}  // namespace conclave
