// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One problem with random tensors, and what it takes to run experts on it: poisoned buffers of exactly the size that
// the part asks for.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conclave/experts.hpp"
#include "conclave/registry.hpp"
#include "support/tensors.hpp"

namespace conclave::test {

/// Constants that make every clamp and bound of the formula matter for values of order 1.
inline ActivationParams typical_params(Activation activation) {
  ActivationParams p;
  switch (activation) {
    case Activation::silu:
    case Activation::swigluoai:
    case Activation::swiglustep:
      p.limit = 0.8;
      break;
    case Activation::swigluoai_uninterleave:
      p.limit = 0.7;
      p.alpha = 1.3;
      p.beta = 0.4;
      break;
    case Activation::situ:
      p.beta = 1.5;
      p.linear_beta = 2.5;
      break;
    default:
      break;
  }
  return p;
}

/// Sizes that all differ, some odd: a mixed-up dimension cannot go unnoticed.
inline MoeConfig small_config(DType dtype = DType::f32) {
  MoeConfig moe;
  moe.num_experts = 5;
  moe.top_k = 3;
  moe.hidden_size = 19;
  moe.intermediate_size = 11;
  moe.dtype = moe.weight_dtype = dtype;
  return moe;
}

struct ExpertCase {
  Problem problem;
  Tensor hidden_states, topk_ids, topk_weights;
  Tensor w13, w2, w13_bias, w2_bias;
  ExpertWeights weights;
  std::optional<ConstTensorView> expert_map;

  const MoeConfig& moe() const { return problem.moe; }
};

/// Biases as the config says, in `bias_dtype`. Weights are scaled so that every stage has values of order 1.
inline ExpertCase make_expert_case(const MoeConfig& moe, std::int64_t num_tokens, std::uint64_t seed,
                                   std::int64_t num_local = -1, DType bias_dtype = DType::f32) {
  ExpertCase c;
  c.problem.moe = moe;
  const std::int64_t local = num_local < 0 ? moe.num_weight_experts() : num_local;
  const std::int64_t hidden = moe.expert_width();
  const std::int64_t inner = moe.intermediate_size;
  const std::int64_t rows = w13_rows(is_gated(moe.activation), inner);
  c.hidden_states = random_tensor(moe.dtype, {num_tokens, hidden}, seed);
  c.topk_ids = random_ids(num_tokens, moe.num_slots(), moe.num_weight_experts(), seed);
  c.topk_weights = random_weights(DType::f32, num_tokens, moe.num_slots(), seed);
  c.w13 = random_tensor(moe.weight_dtype, {local, rows, hidden}, seed + 1, 1.0 / std::sqrt(double(hidden)));
  c.w2 = random_tensor(moe.weight_dtype, {local, hidden, inner}, seed + 2, 1.0 / std::sqrt(double(inner)));
  c.weights.w13 = c.w13;
  c.weights.w2 = c.w2;
  if (moe.has_w13_bias) {
    c.w13_bias = random_tensor(bias_dtype, {local, rows}, seed + 3);
    c.weights.w13_bias = c.w13_bias.view();
  }
  if (moe.has_w2_bias) {
    c.w2_bias = random_tensor(bias_dtype, {local, hidden}, seed + 4);
    c.weights.w2_bias = c.w2_bias.view();
  }
  return c;
}

/// The part `name` of a list of entries, made for `problem`. Throws if it is not there or refuses.
inline std::unique_ptr<Experts> make_experts(const std::vector<Entry<Experts>>& list, const std::string& name,
                                             const Problem& problem, std::shared_ptr<const Router> router = nullptr) {
  for (const Entry<Experts>& entry : list) {
    if (entry.name != name) continue;
    const Support support = entry.supports(problem);
    if (!support) throw std::logic_error(name + " refuses: " + support.reason());
    return entry.make({problem, std::move(router)});
  }
  throw std::logic_error("no part " + name);
}

/// A run of a standard modular part: its output copied out of poisoned buffers whose guard bytes it left alone.
inline Tensor run_standard(const ModularExperts& experts, const ExpertCase& c, const PackedWeights& packed,
                           Executor& executor) {
  const std::int64_t num_tokens = c.hidden_states.view().size(0);
  const PoisonedArena memory([&](Arena& arena) { experts.take_buffers(arena, num_tokens); });
  Arena arena = memory.arena();
  const ExpertsBuffers buffers = experts.take_buffers(arena, num_tokens);
  ExpertsInput input;
  input.hidden_states = c.hidden_states;
  input.topk_ids = c.topk_ids;
  input.topk_weights = c.topk_weights;
  input.expert_map = c.expert_map;
  input.router_weight_applied = c.moe().apply_router_weight_on_input;
  experts.apply(input, packed, buffers, Stream::cpu(executor));
  if (!memory.guard_intact()) throw std::logic_error(experts.name() + " wrote past its buffers");
  const TensorView& out = buffers.output;
  Tensor copy(out.dtype, std::span(out.shape.data(), static_cast<std::size_t>(out.rank)));
  if (out.bytes() > 0) std::memcpy(copy.view().data, out.data, static_cast<std::size_t>(out.bytes()));
  return copy;
}

}  // namespace conclave::test
