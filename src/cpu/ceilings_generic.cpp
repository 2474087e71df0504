// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Out: products and reads in plain C++, for processors without a unit that this library knows.
#include "cpu/ceilings.hpp"
#include "cpu/variants.hpp"

namespace conclave::cpu {
namespace {

/// Keeps a result from being optimised away.
template <class T>
void keep(const T& value) {
  asm volatile("" : : "m"(value) : "memory");
}

}  // namespace

void multiply_add_f32_generic(std::int64_t iterations) {
  constexpr int kSums = 4 * kFlopsSums;
  float sum[kSums];
  for (int i = 0; i < kSums; ++i) sum[i] = static_cast<float>(i);
  for (std::int64_t n = 0; n < iterations; ++n)
    for (int i = 0; i < kSums; ++i) sum[i] = sum[i] * 0.999F + 0.001F;
  keep(sum);
}

void read_generic(const std::byte* from, std::int64_t bytes, int) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(from);
  std::uint64_t sum[8] = {};
  for (std::int64_t i = 0; i < bytes / 64; ++i)
    for (int j = 0; j < 8; ++j) sum[j] += words[8 * i + j];
  keep(sum);
}

}  // namespace conclave::cpu
