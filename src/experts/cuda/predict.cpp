// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The model of predict.hpp. Its constants were fitted to 28 measured points (bench/results/h200.md): OLMoE, Qwen3-30B,
// Mixtral and gpt-oss-120b at 1 to 16384 tokens.
#include "experts/cuda/predict.hpp"

#include <cmath>

namespace conclave::experts::cuda {
namespace {

/// Share of the dense product's rate that a grouped product of infinite K reaches, and the depth at which it reaches
/// half of that: every tile has an epilogue, whatever its K.
constexpr double kPeakShare = 0.8;
constexpr double kHalfDepth = 300;
/// Loads and products overlap, but not fully: the time is the p-norm of both. 1 would add them, infinity would take the
/// larger.
constexpr double kOverlap = 1.7;
/// Share of the copy bandwidth that the weighted sum over scattered rows reaches.
constexpr double kGatherShare = 0.75;
/// Router, tile map, and what is left of launches when each starts while its predecessor ends.
constexpr double kFixed = 8e-6;
constexpr double kElementBytes = 2;

double product_seconds(double experts, double rows, double weight_rows, double depth, const GemmCeilings& c) {
  const double memory = experts * weight_rows * depth * kElementBytes / c.bytes_per_second;
  const double compute = 2 * rows * weight_rows * depth * (depth + kHalfDepth) / (c.flops * kPeakShare * depth);
  return std::pow(std::pow(memory, kOverlap) + std::pow(compute, kOverlap), 1 / kOverlap);
}

}  // namespace

double predict_seconds(const GemmProblem& p, const GemmCeilings& ceilings, std::int64_t num_tokens) {
  if (num_tokens == 0 || ceilings.bytes_per_second <= 0 || ceilings.flops <= 0) return 0;
  const double experts = active_experts(p, num_tokens);
  const auto tokens = static_cast<double>(num_tokens);
  const double rows = tokens * static_cast<double>(p.top_k);
  const auto hidden = static_cast<double>(p.hidden_size);
  const auto inner = static_cast<double>(p.intermediate_size);
  const double first = product_seconds(experts, rows, p.gated ? 2 * inner : inner, hidden, ceilings);
  const double second = product_seconds(experts, rows, hidden, inner, ceilings);
  const double sum = (rows / kGatherShare + 2 * tokens) * hidden * kElementBytes / ceilings.bytes_per_second;
  return first + second + sum + kFixed;
}

}  // namespace conclave::experts::cuda
