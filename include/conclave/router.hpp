// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Stage 1. Logits [M, E] -> Routing (ids and weights [M, k]). routing.hpp has the rule.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "conclave/config.hpp"
#include "conclave/flow.hpp"
#include "conclave/stream.hpp"
#include "conclave/workspace.hpp"

namespace conclave {

struct RouterInput;
/// RoutingMethod::custom: fills ids i32 and weights f32 [M, k]. Must not allocate if run() is not to.
using CustomRouting = std::function<void(const RouterInput& input, const Routing& out)>;

struct RouterInput {
  ConstTensorView logits;                                  ///< [M, E] f32, bf16 or f16; row stride free.
  std::optional<ConstTensorView> e_score_correction_bias;  ///< f32 [E]
  std::optional<ConstTensorView> token_ids;                ///< i32 or i64 [M]; hash_table routing
  std::optional<ConstTensorView> hash_table;               ///< i32 [vocabulary, k]
  std::optional<ConstTensorView> hidden_states;            ///< [M, H]; custom routing
  const CustomRouting* custom = nullptr;
  std::uint64_t step = 0;  ///< Simulated routing: another value, another draw.
};

class Router {
 public:
  virtual ~Router() = default;
  virtual const std::string& name() const noexcept = 0;
  /// Layout of the scratch that route() takes from its arena, for `num_tokens` rows.
  virtual void plan_scratch(Arena& arena, std::int64_t num_tokens) const = 0;
  /// Writes every element of out: ids i32 [M, num_slots], weights f32 [M, num_slots]. M = 0 is legal.
  virtual void route(const RouterInput& input, const Routing& out, Arena& arena, Stream stream) const = 0;
};

/// logits[m, e] = hidden[m] . weight[e] + bias[e], accumulated and stored in f32 whatever the inputs' types: rounding
/// logits to bf16 flips close experts. hidden [M, H]; weight [E, H]; bias [E] optional; logits f32 [M, E].
/// Bitwise independent of M.
void router_logits(const ConstTensorView& hidden_states, const ConstTensorView& router_weight,
                   const std::optional<ConstTensorView>& router_bias, const TensorView& logits, Stream stream);

}  // namespace conclave
