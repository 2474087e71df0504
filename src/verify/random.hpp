// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a seed and the name of a tensor. Out: the same numbers on every machine, whatever else was drawn before.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

namespace conclave::verify_detail {

/// splitmix64: passes statistical tests with one word of state, and any seed is a good one.
class Random {
 public:
  Random(std::uint64_t seed, std::string_view stream) : state_(seed) {
    // FNV-1a, so that each named tensor has a stream of its own and adding one does not shift the others.
    std::uint64_t hash = 0xcbf29ce484222325ULL;
    for (const char c : stream) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    state_ ^= hash;
    next();
  }

  std::uint64_t next() noexcept {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  /// [0, 1) with 53 bits.
  double uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double uniform(double low, double high) noexcept { return low + (high - low) * uniform(); }
  /// Mean 0, variance 1. Bounded on purpose: f16 must not overflow, and no single value may dominate a norm.
  double unit() noexcept { return uniform(-1.7320508075688772, 1.7320508075688772); }
  /// [0, n); the bias of the remainder is far below what a test could see.
  std::int64_t below(std::int64_t n) noexcept {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n));
  }

 private:
  std::uint64_t state_;
};

}  // namespace conclave::verify_detail
