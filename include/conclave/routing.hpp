// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// How logits become (ids, weights): one rule with named parts, and the published methods as presets of that rule.
// The rule, for one token with logits x [E] and optional selection bias b [E], all in f32:
//   1. score:  s = scoring(x) over all E, or s = x when score_after_topk.
//   2. choice: c = s + b. With groups, keep topk_group of num_expert_group groups by group_score, the rest become -inf.
//   3. top-k:  the k largest c, ties to the lower index, NaN never before a number. Order: descending c.
//   4. weight: s of the chosen (never b); when score_after_topk, scoring over the k chosen values only.
//   5. renormalize: w / (sum + epsilon), or w / max(sum, epsilon).
//   6. w * routed_scaling_factor, unless the factor is applied to the output (MoeConfig).
//   7. num_fused_shared_experts extra slots with ids E, E+1, ... and weight fused_shared_weight.
// A row whose logits are all NaN gets ids 0..k-1 with weight 0.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace conclave {

/// Names, never numbers: the integers of vLLM, FlashInfer and TensorRT-LLM disagree from 5 upward.
enum class RoutingMethod : std::uint8_t {
  default_,           ///< softmax, top-k
  renormalize,        ///< top-k, softmax of the k
  deepseek_v3,        ///< sigmoid + bias, groups by the sum of their best two, renormalised with 1e-20, scaled
  llama4,             ///< top-k, sigmoid of the survivors
  renormalize_naive,  ///< softmax, top-k, divided by the sum
  top_k,              ///< top-k, raw logits
  sigmoid_renorm,     ///< sigmoid, top-k, renormalised with 1e-20
  minimax2,           ///< sigmoid, chosen with bias, renormalised with 1e-20
  sigmoid,            ///< sigmoid, top-k
  topk_sigmoid,       ///< top-k on logits, sigmoid of the survivors
  deepseek_v4,        ///< sqrt(softplus), bias or hash table, w / max(sum, 1e-20), scaled
  sparsemixer,        ///< PhiMoE: each pick's weight is a softmax over the logits near it (sparsemixer_jitter)
  custom,             ///< the caller's function (CustomRouting)
  simulated,          ///< random ids for benchmarks (SimulatedRouting); outputs mean nothing
};

enum class Scoring : std::uint8_t { softmax, sigmoid, sqrt_softplus, logits };
enum class GroupScore : std::uint8_t { max, top2_sum };
enum class Renormalize : std::uint8_t {
  none,
  sum_plus_epsilon,  ///< w / (sum + epsilon)
  max_epsilon,       ///< w / max(sum, epsilon)
};
enum class SimulatedRouting : std::uint8_t {
  uniform_random,  ///< ids uniform with repetition, weights 1
  normal_routing,  ///< id = floor(sigmoid(N(0,1)) * E), weights |N| / sum
  uniform,         ///< k distinct ids, uniform, weights 1/k
  zipf,            ///< k distinct ids, P(rank r) ~ 1 / (r+1)^zipf_exponent, weights 1/k
};

struct RoutingConfig {
  RoutingMethod method = RoutingMethod::default_;
  Scoring scoring = Scoring::softmax;
  bool score_after_topk = false;
  bool has_bias = false;  ///< e_score_correction_bias [E] takes part in the choice.
  /// ids come from a table [vocabulary, k] indexed by token id; weights still from scores. Refused beside has_bias.
  bool hash_table = false;
  std::int64_t num_expert_group = 1;
  std::int64_t topk_group = 1;
  GroupScore group_score = GroupScore::max;
  Renormalize renormalize = Renormalize::none;
  double epsilon = 0.0;
  double routed_scaling_factor = 1.0;
  std::int64_t num_fused_shared_experts = 0;
  double fused_shared_weight = 1.0;
  double sparsemixer_jitter = 0.01;
  SimulatedRouting simulated = SimulatedRouting::uniform;
  double zipf_exponent = 1.0;
  std::uint64_t seed = 0;
  bool operator==(const RoutingConfig&) const = default;
};

/// The published parameters of a method; the caller then sets groups, factor and so on.
RoutingConfig routing_preset(RoutingMethod method);

std::string_view name_of(RoutingMethod method) noexcept;
std::string_view name_of(Scoring scoring) noexcept;
std::string_view name_of(GroupScore score) noexcept;
std::string_view name_of(Renormalize mode) noexcept;
std::string_view name_of(SimulatedRouting mode) noexcept;
/// Each throws Error naming the value and every legal name.
RoutingMethod routing_method_from_name(std::string_view name);
Scoring scoring_from_name(std::string_view name);
GroupScore group_score_from_name(std::string_view name);
Renormalize renormalize_from_name(std::string_view name);
SimulatedRouting simulated_from_name(std::string_view name);
std::span<const RoutingMethod> all_routing_methods() noexcept;

/// The method that a model's scoring flags describe, as vLLM's get_routing_method_type decides; nullopt: unspecified.
std::optional<RoutingMethod> routing_method_of(Scoring scoring, bool renormalize, bool grouped, bool has_bias,
                                               double routed_scaling_factor) noexcept;

}  // namespace conclave
