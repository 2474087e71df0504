// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Random numbers that are a function of where they are used: (seed, step, row, draw). No state, so any thread may draw
// any row, in any order.
#pragma once

#include <cstdint>

namespace conclave::router {

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every input bit reaches every output bit.
constexpr std::uint64_t mix64(std::uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

class RowRandom {
 public:
  RowRandom(std::uint64_t seed, std::uint64_t step, std::int64_t row) noexcept
      : key_(mix64(mix64(mix64(seed) ^ step) ^ static_cast<std::uint64_t>(row))) {}

  std::uint64_t bits() noexcept { return mix64(key_ + 0x9E3779B97F4A7C15ULL * ++draw_); }
  /// In (0, 1): the middle of one of 2^53 cells, so that a logarithm is finite.
  double uniform() noexcept { return (static_cast<double>(bits() >> 11) + 0.5) * 0x1p-53; }
  /// In [0, count). Biased by at most count / 2^32, which no benchmark sees.
  std::int64_t below(std::int64_t count) noexcept {
    return static_cast<std::int64_t>(((bits() >> 32) * static_cast<std::uint64_t>(count)) >> 32);
  }

 private:
  std::uint64_t key_;
  std::uint64_t draw_ = 0;
};

}  // namespace conclave::router
