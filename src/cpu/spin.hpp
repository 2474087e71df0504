// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// How to wait for another thread: a processor hint for each turn, and how long turning beats sleeping.
#pragma once

#include <atomic>
#include <chrono>

namespace conclave::cpu {

/// Tells the core that this is a wait loop: the sibling hyper-thread gets the pipeline, and leaving is cheap.
inline void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

/// Turns until value differs from `old` or `limit` is over; returns the value seen last. The clock is read once in 64
/// turns, so that waiting does not become a benchmark of the clock.
template <class T>
T spin_while_equal(const std::atomic<T>& value, T old, std::chrono::nanoseconds limit) noexcept {
  T seen = value.load(std::memory_order_acquire);
  if (seen != old || limit.count() <= 0) return seen;
  const auto end = std::chrono::steady_clock::now() + limit;
  for (;;) {
    for (int turn = 0; turn < 64; ++turn) {
      relax();
      seen = value.load(std::memory_order_acquire);
      if (seen != old) return seen;
    }
    if (std::chrono::steady_clock::now() >= end) return seen;
  }
}

/// Turns for a while, then sleeps, until value differs from `old`; returns the new value.
template <class T>
T wait_while_equal(const std::atomic<T>& value, T old, std::chrono::nanoseconds spin) noexcept {
  T seen = spin_while_equal(value, old, spin);
  while (seen == old) {
    value.wait(old, std::memory_order_acquire);
    seen = value.load(std::memory_order_acquire);
  }
  return seen;
}

}  // namespace conclave::cpu
