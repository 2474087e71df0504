// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The functions of one instruction set each. Their files are compiled for that set, so these functions, and nothing
// else of those files, may be called, and only after asking the processor; the lists that ask are in variants_x86.cpp
// and variants_none.cpp. A new variant is a function here and a line there.
#pragma once

#include <span>

#include "cpu/ceilings.hpp"
#include "cpu/dense.hpp"
#include "cpu/features.hpp"
#include "cpu/float_convert.hpp"

namespace conclave::cpu {

void bf16_to_f32_avx2(const std::uint16_t* from, std::int64_t count, float* to);
void f16_to_f32_avx2(const std::uint16_t* from, std::int64_t count, float* to);
void f32_to_bf16_avx2(const float* from, std::int64_t count, std::uint16_t* to);
void f32_to_f16_avx2(const float* from, std::int64_t count, std::uint16_t* to);
void bf16_to_f32_generic(const std::uint16_t* from, std::int64_t count, float* to);
void f16_to_f32_generic(const std::uint16_t* from, std::int64_t count, float* to);
void f32_to_bf16_generic(const float* from, std::int64_t count, std::uint16_t* to);
void f32_to_f16_generic(const float* from, std::int64_t count, std::uint16_t* to);

void dense_avx512(const DenseTile& tile, DType a, DType w);
void dense_avx2(const DenseTile& tile, DType a, DType w);
void dense_generic(const DenseTile& tile, DType a, DType w);

/// Registers of independent sums in one iteration; AMX has four tiles. Two units of four cycles need 8, and 12 still
/// fit the 16 registers of AVX2 beside two operands.
inline constexpr int kFlopsSums = 12;
void multiply_add_f32_avx512(std::int64_t iterations);
void multiply_add_f32_avx2(std::int64_t iterations);
void multiply_add_f32_generic(std::int64_t iterations);
void multiply_add_bf16_amx(std::int64_t iterations);
void multiply_add_bf16_avx512_bf16(std::int64_t iterations);

void read_avx512(const std::byte* from, std::int64_t bytes, int streams);
void read_avx2(const std::byte* from, std::int64_t bytes, int streams);
void read_generic(const std::byte* from, std::int64_t bytes, int streams);

/// The first that this processor can execute; lists end with one that every processor can.
template <class Variant>
const Variant& first_that_runs(std::span<const Variant> variants) noexcept {
  for (const Variant& variant : variants)
    if (variant.runs_on(features())) return variant;
  return variants.back();
}

}  // namespace conclave::cpu
