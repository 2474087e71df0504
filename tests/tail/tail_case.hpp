// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One rank's open output with random tensors, and the tail computed a second time, in double, from the formula.
#pragma once

#include <cmath>
#include <vector>

#include "conclave/tail.hpp"
#include "support/tensors.hpp"

namespace conclave::test {

struct TailShape {
  std::int64_t num_tokens = 7;
  std::int64_t hidden_size = 521;  // One column chunk and a rest.
  std::int64_t top_k = 3;
  DType rows = DType::f32;
  DType weights = DType::f32;
  DType dtype = DType::f32;  ///< Of shared, residual and norm weight.
};

struct TailCase {
  TailShape shape;
  Tensor rows, weights, map, shared, residual, norm_weight;

  MoeOutput open() const {
    MoeOutput o;
    o.unfinalized = UnfinalizedMoeOutput{rows, weights, map};
    o.shared_output = shared.view();
    return o;
  }
};

/// Every pick has a row of its own, in an order that is not the picks'; one pick of each third token is remote. There
/// are more rows than picks, and what the map does not name is NaN.
inline TailCase make_tail_case(const TailShape& s, std::uint64_t seed) {
  TailCase c;
  c.shape = s;
  const std::int64_t picks = s.num_tokens * s.top_k;
  c.rows = random_tensor(s.rows, {picks + 5, s.hidden_size}, seed);
  c.weights = random_weights(s.weights, s.num_tokens, s.top_k, seed + 1);
  c.map = Tensor(DType::i32, {s.num_tokens, s.top_k});
  std::vector<bool> used(static_cast<std::size_t>(picks + 5), false);
  for (std::int64_t i = 0; i < picks; ++i) {
    const bool remote = i % (3 * s.top_k) == 1;
    const std::int64_t row = picks - 1 - i;
    c.map.as<std::int32_t>()[i] = remote ? -1 : static_cast<std::int32_t>(row);
    if (!remote) used[static_cast<std::size_t>(row)] = true;
  }
  for (std::int64_t r = 0; r < picks + 5; ++r)
    if (!used[static_cast<std::size_t>(r)])
      for (std::int64_t h = 0; h < s.hidden_size; ++h) set(c.rows, {r, h}, NAN);
  c.shared = random_tensor(s.dtype, {s.num_tokens, s.hidden_size}, seed + 2);
  c.residual = random_tensor(s.dtype, {s.num_tokens, s.hidden_size}, seed + 3);
  c.norm_weight = random_tensor(s.dtype, {s.hidden_size}, seed + 4);
  return c;
}

/// routed * s + shared of one rank.
inline std::vector<double> oracle_partial(const MoeOutput& o, std::int64_t num_tokens, std::int64_t hidden_size) {
  std::vector<double> out;
  for (std::int64_t t = 0; t < num_tokens; ++t)
    for (std::int64_t h = 0; h < hidden_size; ++h) {
      double sum = o.routed ? at(*o.routed, {t, h}) : 0.0;
      for (std::int64_t k = 0; o.unfinalized && k < o.unfinalized->expert_weights.size(1); ++k) {
        const auto row = static_cast<std::int64_t>(at(o.unfinalized->expanded_idx_to_permuted_idx, {t, k}));
        const double weight = at(o.unfinalized->expert_weights, {t, k});
        if (row >= 0 && weight != 0) sum += weight * at(o.unfinalized->gemm2_permuted, {row, h});
      }
      sum *= o.routed_scaling_factor;
      if (o.shared_output) sum += at(*o.shared_output, {t, h});
      out.push_back(sum);
    }
  return out;
}

struct TailOracle {
  std::vector<double> residual_out, normed;
};

/// `ranks`: the open output of each.
inline TailOracle oracle_tail(const TailConfig& config, const std::vector<MoeOutput>& ranks, const TailCase& c,
                              bool with_residual = true) {
  const std::int64_t width = c.shape.hidden_size;
  TailOracle o;
  o.residual_out.assign(static_cast<std::size_t>(c.shape.num_tokens * width), 0.0);
  for (const MoeOutput& rank : ranks) {
    const std::vector<double> part = oracle_partial(rank, c.shape.num_tokens, width);
    for (std::size_t i = 0; i < part.size(); ++i) o.residual_out[i] += part[i];
  }
  for (std::int64_t t = 0; t < c.shape.num_tokens; ++t) {
    double* z = o.residual_out.data() + t * width;
    double squares = 0;
    for (std::int64_t h = 0; h < width; ++h) {
      if (with_residual) z[h] += at(c.residual, {t, h});
      squares += z[h] * z[h];
    }
    const double root = std::sqrt(squares / static_cast<double>(width) + config.epsilon);
    for (std::int64_t h = 0; h < width; ++h)
      o.normed.push_back(z[h] / root * (at(c.norm_weight, {h}) + config.weight_bias));
  }
  return o;
}

/// run_tail() into poisoned tensors with poisoned scratch of exactly the planned size.
struct TailRun {
  Tensor residual_out, normed, quantised, token_scales;
};
inline TailRun run_tail_once(const TailConfig& config, const TailInput& input, const TailShape& s, Executor& executor,
                             DType out = DType::f32) {
  TailRun r{poisoned_tensor(out, {s.num_tokens, s.hidden_size}), poisoned_tensor(out, {s.num_tokens, s.hidden_size}),
            poisoned_tensor(DType::fp8_e4m3, {s.num_tokens, s.hidden_size}),
            poisoned_tensor(DType::f32, {s.num_tokens})};
  TailOutput output;
  output.residual_out = r.residual_out.view();
  output.normed = r.normed.view();
  if (config.quant != QuantKey::none) output.quantised = r.quantised.view();
  if (config.quant == QuantKey::fp8_token) output.token_scales = r.token_scales.view();
  const PoisonedArena memory([&](Arena& a) { plan_tail_scratch(a, s.num_tokens, s.hidden_size); });
  Arena arena = memory.arena();
  run_tail(config, input, output, arena, Stream::cpu(executor));
  if (!memory.guard_intact()) throw std::logic_error("run_tail wrote past its scratch");
  return r;
}

}  // namespace conclave::test
