// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: rows of numbers. Out: the same rows in fixed point, three signed digits of seven bits a number, for units that
// multiply bytes and not floats (DigitKernel). The numbers of a group share a step of 2^n, such that the largest has 20
// bits: what a bf16 holds down to 2^-12 of the largest stays exact, and no number moves by more than 2^-20 of it.
// Digits of eight bits would move it by 2^-23 and take a third more additions, because fewer of their products fit a
// word.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "experts/cpu/row_ops.hpp"

namespace conclave::experts::grouped {
namespace {

inline constexpr int kDigits = 3;
inline constexpr int kDigitBits = 7;
inline constexpr int kNumberBits = kDigits * kDigitBits - 1;
inline constexpr int kQuad = 4;

/// One row's numbers of one group, in as many words as there are numbers:
///   float step; int32 sum of the numbers in steps; then for each quad of k: [digit, lowest first][4] bytes
/// Two words and three of every quad: 16 numbers fill 14 of theirs, more leave some over.
inline constexpr int kDigitHead = 2;
constexpr bool digits_fit(std::int64_t group) {
  return kDigitHead + group / kQuad * kDigits <= group;
}

/// 2^n, a normal number whose inverse is one too, such that a number of which `amax` has the bits is at most
/// 2^20 / (1 + 2^-6) steps and, where it is not tiny, more than half of that; NaN if it is not finite. The 64th is
/// what three signed digits lack of a power of two: 63 * (2^14 + 2^7 + 1) is less than 2^20.
inline float step_of(std::uint32_t amax) {
  float number;
  std::memcpy(&number, &amax, sizeof(number));
  number *= 1 + 1.0f / 64;
  std::memcpy(&amax, &number, sizeof(amax));
  std::uint32_t exponent = amax >> 23 & 0xFF;
  if (exponent == 0xFF) return std::numeric_limits<float>::quiet_NaN();
  exponent = exponent >= kNumberBits ? exponent - kNumberBits + 1 : 1;
  amax = exponent << 23;
  std::memcpy(&number, &amax, sizeof(number));
  return number;
}

/// `Part` at one type of activations -> digits in the layout of inputs: [k / group][row][group words].
template <class Part>
struct DigitRows {
  using Ops = RowOps<Part>;
  using Simd = typename Part::Simd;
  using Vec = typename Simd::Vec;
  using Source = typename Part::Source;
  static constexpr std::int64_t kLanes = Simd::kLanes;
  static constexpr std::int64_t kGroup = Part::Kernel::kFormat.scale_group;
  static constexpr std::int64_t kVectors = kGroup / kLanes;
  static_assert(kGroup % kLanes == 0 && kLanes % kQuad == 0 && digits_fit(kGroup));

  static void pack_group(const Vec (&values)[kVectors], std::int32_t* to) {
    const float step = step_of(Simd::largest_bits(values));
    std::memcpy(to, &step, sizeof(step));
    // A step that is NaN makes the row NaN, whatever its digits are; those of 0 have sums that fit.
    const bool finite = step == step;
    const Vec inverse = Simd::set(finite ? 1.0f / step : 0.0f);
    typename Simd::Int sums = Simd::zero();
    for (std::int64_t v = 0; v < kVectors; ++v) {
      const Vec numbers = finite ? values[v] * inverse : Simd::set(0.0f);
      sums = Simd::store_digits(numbers, to + kDigitHead + v * (kLanes / kQuad) * kDigits, sums);
    }
    to[1] = Part::kSumFactor * Simd::total(sums);
  }

  static void pack_rows(const PackRowsTask& task) {
    auto* to = static_cast<std::int32_t*>(task.to);
    for (std::int64_t r = 0; r < task.valid_rows; ++r) {
      const Source* from = Ops::row(task, r);
      for (std::int64_t k = 0; k < task.k; k += kGroup) {
        Vec values[kVectors];
        for (std::int64_t v = 0; v < kVectors; ++v) {
          const std::int64_t at = k + v * kLanes;
          const std::int64_t left = task.num_columns - at;
          values[v] = left >= kLanes ? Part::load_source(from + at) : Ops::load_some(from + at, left);
        }
        pack_group(values, to + k * task.padded_rows + r * kGroup);
      }
    }
  }
};

}  // namespace
}  // namespace conclave::experts::grouped
