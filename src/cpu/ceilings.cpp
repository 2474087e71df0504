// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: an Executor. Out: the most bytes and products a second that its threads reached in any of several rounds.
#include "conclave/ceilings.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "cpu/ceilings.hpp"
#include "cpu/parallel_for.hpp"
#include "cpu/variants.hpp"

namespace conclave {
namespace cpu {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Long enough for a region's start to vanish (1 %), short enough that some round meets no other process.
constexpr double kRoundSeconds = 0.01;
/// For each loop. Memory that other tenants share goes up and down over tenths of a second: ten rounds in one of them
/// read 114 GB/s where kernels later reached 150.
constexpr double kLoopSeconds = 0.4;
constexpr int kLeastRounds = 5;

/// Most units a second over the rounds; round() does `units` of them.
template <class F>
double best_rate(double units, F&& round) {
  double best = 0;
  const auto first = Clock::now();
  for (int i = 0; i < kLeastRounds || seconds_since(first) < kLoopSeconds; ++i) {
    const auto start = Clock::now();
    round();
    best = std::max(best, units / seconds_since(start));
  }
  return best;
}

double measure_flops(const FlopsKernel& kernel, Executor& executor) {
  // One thread finds how many iterations fill a round; the first call also lets the clock rise.
  std::int64_t iterations = 1000;
  for (;;) {
    const auto start = Clock::now();
    kernel.run(iterations);
    if (seconds_since(start) > kRoundSeconds / 2) break;
    iterations *= 2;
  }
  const double flops = kernel.flops_per_iteration * static_cast<double>(iterations) * executor.num_threads();
  return best_rate(flops, [&] { executor.parallel([&](int) { kernel.run(iterations); }); });
}

/// Far larger than the last cache (4 times), but no more than 512 MiB, which no shared slice of a cache holds either.
std::int64_t read_buffer_bytes() {
  constexpr std::int64_t kMost = std::int64_t{512} << 20;
  constexpr std::int64_t kLeast = std::int64_t{128} << 20;
  return std::clamp(4 * cache_bytes(3), kLeast, kMost);
}

double measure_read(Executor& executor) {
  const ReadKernel& kernel = first_that_runs(read_kernels());
  const std::int64_t bytes = read_buffer_bytes();
  const Storage buffer(bytes);
  // 2 MiB pages where the system has them: otherwise the walk of the page table is measured too.
  madvise(buffer.data(), static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  const auto share = [&](int thread) { return static_share(bytes, executor.num_threads(), thread, kReadUnit); };
  // Written by the thread that will read it: pages never written are one shared page of zeros, and on several memory
  // nodes a page lives where it was first written.
  executor.parallel([&](int thread) {
    const Range r = share(thread);
    std::memset(buffer.data() + r.begin, 1, static_cast<std::size_t>(r.size()));
  });
  double best = 0;
  for (const int streams : {1, 2, 4, 8}) {
    best = std::max(best, best_rate(static_cast<double>(bytes), [&] {
                      executor.parallel([&](int thread) {
                        const Range r = share(thread);
                        kernel.run(buffer.data() + r.begin, r.size() / kReadUnit * kReadUnit, streams);
                      });
                    }));
  }
  return best;
}

}  // namespace
}  // namespace cpu

CpuCeilings measure_cpu_ceilings(Executor& executor) {
  using namespace cpu;
  CpuCeilings c;
  c.f32_flops = measure_flops(first_that_runs(f32_flops_kernels()), executor);
  c.bf16_flops = c.f32_flops;
  for (const FlopsKernel& kernel : bf16_flops_kernels()) {
    if (!kernel.runs_on(features())) continue;
    c.bf16_flops = std::max(c.bf16_flops, measure_flops(kernel, executor));
    break;
  }
  c.f16_flops = c.f32_flops;  // f16 is widened to f32: no unit that multiplies f16 is used.
  c.read_bytes_per_second = measure_read(executor);
  return c;
}

}  // namespace conclave
