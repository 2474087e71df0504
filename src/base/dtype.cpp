// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One table: dtype -> name and bits.
#include "conclave/dtype.hpp"

#include <array>

namespace conclave {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int bits;
};

constexpr std::array<DTypeRow, 22> kDTypes{{
    {DType::f32, "f32", 32},
    {DType::bf16, "bf16", 16},
    {DType::f16, "f16", 16},
    {DType::f64, "f64", 64},
    {DType::i64, "i64", 64},
    {DType::i32, "i32", 32},
    {DType::i16, "i16", 16},
    {DType::i8, "i8", 8},
    {DType::u64, "u64", 64},
    {DType::u32, "u32", 32},
    {DType::u16, "u16", 16},
    {DType::u8, "u8", 8},
    {DType::boolean, "bool", 8},
    {DType::c64, "c64", 64},
    {DType::fp8_e4m3, "fp8_e4m3", 8},
    {DType::fp8_e5m2, "fp8_e5m2", 8},
    {DType::fp8_e4m3fnuz, "fp8_e4m3fnuz", 8},
    {DType::fp8_e5m2fnuz, "fp8_e5m2fnuz", 8},
    {DType::e8m0, "e8m0", 8},
    {DType::fp6_e2m3, "fp6_e2m3", 6},
    {DType::fp6_e3m2, "fp6_e3m2", 6},
    {DType::fp4_e2m1, "fp4_e2m1", 4},
}};

/// The enum is the index; the table is checked against that below.
constexpr const DTypeRow& row(DType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)];
}

constexpr bool dtypes_are_ordered() {
  for (std::size_t i = 0; i < kDTypes.size(); ++i)
    if (kDTypes[i].dtype != static_cast<DType>(i)) return false;
  return true;
}
static_assert(dtypes_are_ordered());

}  // namespace

int bits_of(DType dtype) noexcept {
  return row(dtype).bits;
}

std::int64_t bytes_of(DType dtype, std::int64_t count) noexcept {
  const int bits = row(dtype).bits;
  // Whole bytes first: count * bits would overflow for counts near 2^61, count * bytes does not before memory ends.
  return bits % 8 == 0 ? count * (bits / 8) : (count * bits + 7) / 8;
}

std::string_view name_of(DType dtype) noexcept {
  return row(dtype).name;
}

std::optional<DType> dtype_from_name(std::string_view name) noexcept {
  for (const DTypeRow& r : kDTypes)
    if (r.name == name) return r.dtype;
  return std::nullopt;
}

bool is_compute_dtype(DType dtype) noexcept {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

}  // namespace conclave
