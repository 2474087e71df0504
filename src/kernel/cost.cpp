// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Problem and token count -> the bytes and operations that no kernel can avoid, and the time they take at the measured
// ceilings. Uniform routing: k distinct experts out of E for each token.
#include <algorithm>
#include <cmath>

#include "conclave/expert_map.hpp"
#include "conclave/plan.hpp"

namespace conclave {
namespace {

double mlp_weight_bytes(const Problem& p, std::int64_t rows13, std::int64_t width, std::int64_t inner) {
  return static_cast<double>(weight_bytes(p.quant.weights, p.moe.weight_dtype, rows13, width) +
                             weight_bytes(p.quant.weights, p.moe.weight_dtype, width, inner));
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

/// Experts of this rank that have weights, as a fraction of all experts the router can pick.
double local_experts(const Problem& p) {
  const std::int64_t all = p.moe.num_weight_experts();
  if (!p.parallel.use_ep) return static_cast<double>(all);
  return static_cast<double>(
      make_expert_map(all, p.parallel.ep_size, p.parallel.ep_rank, Placement::linear).num_local());
}

}  // namespace

CostPoint cost_of(const Problem& p, std::int64_t num_tokens) {
  const MoeConfig& c = p.moe;
  const auto tokens = static_cast<double>(num_tokens);
  const auto width = static_cast<double>(c.expert_width());
  const auto inner = static_cast<double>(c.intermediate_size);
  const std::int64_t rows13 = w13_rows(is_gated(c.activation), c.intermediate_size);
  const double local = local_experts(p);
  const double pick = static_cast<double>(c.top_k) / static_cast<double>(c.num_experts);

  CostPoint cost;
  cost.num_tokens = num_tokens;
  cost.active_experts = num_tokens == 0 ? 0 : local * (1 - std::pow(1 - pick, tokens));
  cost.weight_bytes = cost.active_experts * mlp_weight_bytes(p, rows13, c.expert_width(), c.intermediate_size);
  const double rows = tokens * pick * local;
  cost.flops = 2 * rows * (static_cast<double>(rows13) * width + width * inner);

  const auto element = static_cast<double>(bits_of(c.weight_dtype)) / 8;
  const auto dense = [&](double out, double in) {
    if (num_tokens > 0) cost.weight_bytes += out * in * element;
    cost.flops += 2 * tokens * out * in;
  };
  const auto hidden = static_cast<double>(c.hidden_size);
  dense(static_cast<double>(c.num_experts), hidden);
  if (c.shared.intermediate_size > 0) {
    const auto shared13 = static_cast<double>(w13_rows(is_gated(c.activation), c.shared.intermediate_size));
    dense(shared13, hidden);
    dense(hidden, static_cast<double>(c.shared.intermediate_size));
  }
  if (c.latent_size > 0) {
    dense(width, hidden);
    dense(hidden, width);
  }
  cost.activation_bytes = 2 * tokens * hidden * bits_of(c.dtype) / 8;

  const double peak = peak_flops(p);
  if (p.device.bytes_per_second > 0 && peak > 0) {
    const double memory = (cost.weight_bytes + cost.activation_bytes) / p.device.bytes_per_second;
    const double compute = cost.flops / peak;
    cost.seconds = std::max(memory, compute);
    cost.memory_bound = memory >= compute;
  }
  return cost;
}

}  // namespace conclave
