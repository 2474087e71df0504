// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The clock, and the roofline of one draw.
#include "bench_layer.hpp"

#include <algorithm>
#include <chrono>

namespace conclave::cli {
namespace {

double timed(const std::function<void(std::int64_t)>& body, std::int64_t draw) {
  const auto begin = std::chrono::steady_clock::now();
  body(draw);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double peak_flops(const Problem& p) {
  switch (p.moe.dtype) {
    case DType::bf16:
      return p.device.bf16_flops;
    case DType::f16:
      return p.device.f16_flops;
    default:
      return p.device.f32_flops;
  }
}

double mlp_bytes(const Problem& p, std::int64_t width, std::int64_t inner) {
  const std::int64_t rows13 = w13_rows(is_gated(p.moe.activation), inner);
  return static_cast<double>(weight_bytes(p.quant.weights, p.moe.weight_dtype, rows13, width) +
                             weight_bytes(p.quant.weights, p.moe.weight_dtype, width, inner));
}

double mlp_flops(const Problem& p, double rows, std::int64_t width, std::int64_t inner) {
  const std::int64_t rows13 = w13_rows(is_gated(p.moe.activation), inner);
  return 2.0 * rows * static_cast<double>(width) * static_cast<double>(rows13 + inner);
}

}  // namespace

Timing measure(const TimingOptions& options, std::int64_t num_draws, const std::function<void(std::int64_t)>& body) {
  // Two runs touch every buffer and wake every thread; more would not change what follows.
  double spent = timed(body, 0);
  std::int64_t next = 1;
  if (spent < options.max_seconds) spent = timed(body, next++ % num_draws);
  Timing timing;
  std::vector<double> seconds;
  double total = 0;
  constexpr std::size_t kFewest = 5, kMost = 100'000;
  while (seconds.size() < kMost) {
    const bool enough = total >= options.min_seconds && seconds.size() >= kFewest;
    if (enough || (!seconds.empty() && total >= options.max_seconds)) break;
    timing.draws.push_back(next % num_draws);
    seconds.push_back(timed(body, next++ % num_draws));
    total += seconds.back();
  }
  std::sort(seconds.begin(), seconds.end());
  const std::size_t half = seconds.size() / 2;
  timing.median_us = 1e6 * (seconds.size() % 2 == 1 ? seconds[half] : 0.5 * (seconds[half - 1] + seconds[half]));
  timing.min_us = 1e6 * seconds.front();
  timing.max_us = 1e6 * seconds.back();
  timing.iterations = static_cast<std::int64_t>(seconds.size());
  return timing;
}

Work work_of(const Problem& p, const Load& load, std::int64_t num_tokens) {
  const MoeConfig& c = p.moe;
  const auto tokens = static_cast<double>(num_tokens), hidden = static_cast<double>(c.hidden_size);
  const double weight_element = bits_of(c.weight_dtype) / 8.0;
  Work work;
  work.weight_bytes = static_cast<double>(load.active_experts) * mlp_bytes(p, c.expert_width(), c.intermediate_size);
  work.flops = mlp_flops(p, static_cast<double>(load.rows), c.expert_width(), c.intermediate_size);
  if (c.shared.intermediate_size > 0) {
    work.weight_bytes += mlp_bytes(p, c.hidden_size, c.shared.intermediate_size);
    work.flops += mlp_flops(p, tokens, c.hidden_size, c.shared.intermediate_size);
  }
  const double latent = 2.0 * static_cast<double>(c.latent_size) * hidden;
  work.weight_bytes += latent * weight_element;
  work.flops += 2.0 * tokens * latent;
  work.activation_bytes = tokens * (2.0 * hidden * bits_of(c.dtype) / 8.0 + 4.0 * static_cast<double>(c.num_experts));
  if (p.device.bytes_per_second > 0 && peak_flops(p) > 0) {
    const double memory = (work.weight_bytes + work.activation_bytes) / p.device.bytes_per_second;
    const double compute = work.flops / peak_flops(p);
    work.floor_us = 1e6 * std::max(memory, compute);
    work.memory_bound = memory >= compute;
  }
  return work;
}

Point point_of(const Problem& problem, const Draws& draws, const Timing& timing, std::int64_t num_tokens) {
  Point point;
  point.timing = timing;
  std::int64_t memory_bound = 0;
  for (const std::int64_t draw : timing.draws) {
    const Load& load = draws.loads[static_cast<std::size_t>(draw)];
    const Work work = work_of(problem, load, num_tokens);
    point.work.weight_bytes += work.weight_bytes;
    point.work.activation_bytes += work.activation_bytes;
    point.work.flops += work.flops;
    point.work.floor_us += work.floor_us;
    point.active_experts += static_cast<double>(load.active_experts);
    point.busiest += static_cast<double>(load.busiest);
    memory_bound += work.memory_bound ? 1 : 0;
  }
  for (double* sum : {&point.work.weight_bytes, &point.work.activation_bytes, &point.work.flops, &point.work.floor_us,
                      &point.active_experts, &point.busiest})
    *sum /= static_cast<double>(timing.iterations);
  point.work.memory_bound = 2 * memory_bound >= timing.iterations;
  return point;
}

}  // namespace conclave::cli
