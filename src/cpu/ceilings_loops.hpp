// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The loops of ceilings_<instruction set>.cpp, written once for any register.
#pragma once

#include <cstddef>
#include <cstdint>

namespace conclave::cpu {

/// `Sums` independent accumulators, sum = multiply(sum), so that latency is hidden and nothing touches memory.
template <int Sums, class Reg, class Multiply>
inline void flops_loop(std::int64_t iterations, Reg start, Multiply multiply) {
  Reg sum[Sums];
#pragma GCC unroll 16
  for (int i = 0; i < Sums; ++i) {
    sum[i] = start;
    // Makes each accumulator a value of its own: equal ones would be computed once.
    asm volatile("" : "+v"(sum[i]));
  }
  for (std::int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 16
    for (int i = 0; i < Sums; ++i) sum[i] = multiply(sum[i]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < Sums; ++i) asm volatile("" : : "v"(sum[i]));
}

/// One cache line of each stream in turn. The prefetch runs ahead of the hardware's at the start of each page.
template <int Streams, class Line>
inline void read_streams(const std::byte* from, std::int64_t bytes, Line line) {
  constexpr std::int64_t kAhead = 1024;
  const std::int64_t length = bytes / Streams;
  for (std::int64_t i = 0; i < length; i += 64) {
#pragma GCC unroll 8
    for (int s = 0; s < Streams; ++s) {
      const std::byte* p = from + s * length + i;
      __builtin_prefetch(p + kAhead);
      line(p);
    }
  }
}

template <class Line>
inline void read_loop(const std::byte* from, std::int64_t bytes, int streams, Line line) {
  if (streams == 1) return read_streams<1>(from, bytes, line);
  if (streams == 2) return read_streams<2>(from, bytes, line);
  if (streams == 4) return read_streams<4>(from, bytes, line);
  read_streams<8>(from, bytes, line);
}

}  // namespace conclave::cpu
