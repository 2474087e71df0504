// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: something to run again and again. Out: its times, and the floor that no implementation can be under.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "bench_routing.hpp"
#include "conclave/config.hpp"

namespace conclave::cli {

struct TimingOptions {
  double min_seconds = 0.5;  ///< Time to spend on one point, warm-up excluded.
  double max_seconds = 20;   ///< A point that one run already exceeds is measured once.
};

struct Timing {
  double median_us = 0, min_us = 0, max_us = 0;
  std::int64_t iterations = 0;
  std::vector<std::int64_t> draws;  ///< The draw of each iteration.
};

/// Calls `body` with the draws 0, 1, ... in turn.
Timing measure(const TimingOptions& options, std::int64_t num_draws, const std::function<void(std::int64_t)>& body);

/// Bytes and operations of the whole layer for one draw, and the time that they take at the measured ceilings.
struct Work {
  double weight_bytes = 0;      ///< Of the experts that this draw activates, and of what every token visits.
  double activation_bytes = 0;  ///< Input, output and logits.
  double flops = 0;
  double floor_us = 0;
  bool memory_bound = false;
};
Work work_of(const Problem& problem, const Load& load, std::int64_t num_tokens);

/// The mean over the draws that were timed.
struct Point {
  Timing timing;
  Work work;
  double active_experts = 0, busiest = 0;
  double gigabytes_per_second() const { return (work.weight_bytes + work.activation_bytes) * 1e-3 / timing.median_us; }
  double teraflops() const { return work.flops * 1e-6 / timing.median_us; }
  double ratio() const { return work.floor_us / timing.median_us; }
};
Point point_of(const Problem& problem, const Draws& draws, const Timing& timing, std::int64_t num_tokens);

}  // namespace conclave::cli
