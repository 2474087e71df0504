// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Loops over an Executor: static shares, shares taken from a counter, and a barrier between phases of one region.
// Nothing here allocates.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "conclave/stream.hpp"
#include "cpu/spin.hpp"

namespace conclave::cpu {

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const noexcept { return end - begin; }
};

/// Share `part` of [0, count): contiguous, sizes differ by at most one unit, and every boundary is a multiple of
/// `unit`.
constexpr Range static_share(std::int64_t count, int parts, int part, std::int64_t unit = 1) noexcept {
  const std::int64_t units = (count + unit - 1) / unit;
  const std::int64_t base = units / parts;
  const std::int64_t rest = units % parts;
  const std::int64_t first = part * base + std::min<std::int64_t>(part, rest);
  const std::int64_t last = first + base + (part < rest ? 1 : 0);
  return {std::min(first * unit, count), std::min(last * unit, count)};
}

/// Hands out [0, count) in order, `grain` at a time, to whoever asks first. One for each loop, shared by its threads.
class WorkCounter {
 public:
  /// An empty range once everything is handed out.
  Range take(std::int64_t count, std::int64_t grain) noexcept {
    const std::int64_t begin = std::min(next_.fetch_add(grain, std::memory_order_relaxed), count);
    return {begin, std::min(begin + grain, count)};
  }
  /// Only while no thread takes: before a region, or between two barriers.
  void reset() noexcept { next_.store(0, std::memory_order_relaxed); }

 private:
  alignas(64) std::atomic<std::int64_t> next_{0};
};

/// f(begin, end, thread) over static shares of [0, count). Runs on the caller alone if count <= grain: a region costs
/// a few microseconds, so grain is the amount of work that is not worth one.
template <class F>
void parallel_for(Executor& executor, std::int64_t count, std::int64_t grain, F&& f) {
  if (count <= 0) return;
  const int parts = executor.num_threads();
  if (parts == 1 || count <= grain) return f(std::int64_t{0}, count, 0);
  executor.parallel([&](int thread) {
    const Range r = static_share(count, parts, thread);
    if (r.size() > 0) f(r.begin, r.end, thread);
  });
}

/// f(begin, end, thread) over chunks of `grain` from one counter: for items of unequal cost.
template <class F>
void parallel_for_dynamic(Executor& executor, std::int64_t count, std::int64_t grain, F&& f) {
  if (count <= 0) return;
  if (executor.num_threads() == 1 || count <= grain) return f(std::int64_t{0}, count, 0);
  WorkCounter counter;
  executor.parallel([&](int thread) {
    for (Range r = counter.take(count, grain); r.size() > 0; r = counter.take(count, grain)) f(r.begin, r.end, thread);
  });
}

/// Lets every thread of one region wait for the others between phases, cheaper than ending the region. All
/// `num_threads` must arrive each time: a body that throws between two barriers would leave the rest waiting forever.
class Barrier {
 public:
  explicit Barrier(int num_threads) noexcept : num_threads_(num_threads) {}

  void arrive_and_wait() noexcept {
    const std::uint32_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      phase_.notify_all();
    } else {
      wait_while_equal(phase_, phase, kSpin);
    }
  }

 private:
  /// Phases end within microseconds of each other unless a thread has lost its core; then sleeping gives it one.
  static constexpr std::chrono::microseconds kSpin{50};
  const int num_threads_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<std::uint32_t> phase_{0};
};

}  // namespace conclave::cpu
