// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Element types of tensors: what a byte pattern means, and how many bits one element takes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace conclave {

/// Every element type that a checkpoint can hold. Arithmetic exists for the ones that a part says it supports.
enum class DType : std::uint8_t {
  f32,
  bf16,
  f16,
  f64,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean,
  c64,
  fp8_e4m3,
  fp8_e5m2,
  fp8_e4m3fnuz,
  fp8_e5m2fnuz,
  e8m0,
  fp6_e2m3,
  fp6_e3m2,
  fp4_e2m1,
};

/// Bits of one element; 4 and 6 are packed without padding between elements.
int bits_of(DType dtype) noexcept;

/// Bytes of `count` packed elements, rounded up to whole bytes.
std::int64_t bytes_of(DType dtype, std::int64_t count) noexcept;

/// The name used in case files, reports and errors: "f32", "bf16", "fp8_e4m3", ...
std::string_view name_of(DType dtype) noexcept;

/// The inverse of name_of, and nothing else.
std::optional<DType> dtype_from_name(std::string_view name) noexcept;

/// f32, bf16 and f16: the types that activations and unquantised weights may have.
bool is_compute_dtype(DType dtype) noexcept;

}  // namespace conclave
