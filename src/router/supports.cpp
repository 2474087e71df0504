// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a problem. Out: yes, or the first field that the rule of routing.hpp gives no meaning.
#include "router/supports.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace conclave::router {
namespace {

template <class... Args>
Support unless(bool fine, fmt::format_string<Args...> reason, Args&&... args) {
  return fine ? Support::yes() : Support::no(fmt::format(reason, std::forward<Args>(args)...));
}

Support check_sizes(const Problem& p, DeviceType device) {
  const MoeConfig& c = p.moe;
  constexpr std::int64_t kMostIds = std::numeric_limits<std::int32_t>::max();
  return first_refusal(unless(p.device.device.type == device, "device is {}, it runs on {}", to_string(p.device.device),
                              device == DeviceType::cpu ? "cpu" : "cuda"),
                       unless(is_compute_dtype(c.router_logits_dtype),
                              "router_logits_dtype is {}, it reads f32, bf16 and f16", name_of(c.router_logits_dtype)),
                       unless(c.num_experts >= 1 && c.num_experts <= kMostIds - c.routing.num_fused_shared_experts,
                              "num_experts {} does not fit ids of 32 bits", c.num_experts),
                       unless(c.top_k >= 1 && c.top_k <= c.num_experts, "top_k {} is not in 1 to num_experts {}",
                              c.top_k, c.num_experts));
}

Support check_groups(const MoeConfig& c) {
  const RoutingConfig& r = c.routing;
  if (r.num_expert_group < 1 || r.topk_group < 1 || r.topk_group > r.num_expert_group)
    return Support::no(
        fmt::format("topk_group {} is not in 1 to num_expert_group {}", r.topk_group, r.num_expert_group));
  if (c.num_experts % r.num_expert_group != 0)
    return Support::no(
        fmt::format("num_expert_group {} does not divide num_experts {}", r.num_expert_group, c.num_experts));
  const std::int64_t eligible = c.num_experts / r.num_expert_group * r.topk_group;
  return unless(c.top_k <= eligible, "top_k {} is more than the {} experts of topk_group {}", c.top_k, eligible,
                r.topk_group);
}

Support check_numbers(const RoutingConfig& r) {
  const auto finite_from_zero = [](double v) { return std::isfinite(v) && v >= 0; };
  return first_refusal(
      unless(finite_from_zero(r.epsilon), "epsilon {} is not a finite number from 0", r.epsilon),
      unless(std::isfinite(r.routed_scaling_factor), "routed_scaling_factor {} is not finite", r.routed_scaling_factor),
      unless(std::isfinite(r.fused_shared_weight), "fused_shared_weight {} is not finite", r.fused_shared_weight),
      unless(r.num_fused_shared_experts >= 0, "num_fused_shared_experts {} is negative", r.num_fused_shared_experts),
      unless(finite_from_zero(r.sparsemixer_jitter), "sparsemixer_jitter {} is not a finite number from 0",
             r.sparsemixer_jitter),
      unless(finite_from_zero(r.zipf_exponent), "zipf_exponent {} is not a finite number from 0", r.zipf_exponent));
}

/// Fields that a method has no use for must be at rest: none is silently ignored.
Support check_method(const RoutingConfig& r) {
  const std::string_view method = name_of(r.method);
  const bool groups = r.num_expert_group > 1;
  const bool draws = r.method == RoutingMethod::simulated;
  const bool mixes = r.method == RoutingMethod::sparsemixer;
  const bool own_choice = draws || mixes || r.method == RoutingMethod::custom;
  return first_refusal(
      unless(!(own_choice && groups), "method {} has no groups (num_expert_group {})", method, r.num_expert_group),
      unless(!(own_choice && r.hash_table), "method {} takes no hash_table", method),
      unless(!((draws || mixes) && r.has_bias), "method {} takes no e_score_correction_bias", method),
      unless(!(mixes && (r.scoring != Scoring::softmax || r.score_after_topk)),
             "method {} scores by softmax, each pick for itself (scoring {}, score_after_topk {})", method,
             name_of(r.scoring), r.score_after_topk),
      unless(!(r.hash_table && groups), "hash_table chooses without groups (num_expert_group {})", r.num_expert_group),
      unless(!(r.hash_table && r.has_bias),
             "hash_table chooses, so e_score_correction_bias has no say (has_bias true, expected false)"));
}

Support check_scale(const MoeConfig& c) {
  const RoutingConfig& r = c.routing;
  const bool scales_shared =
      c.routed_scale_on_output && r.routed_scaling_factor != 1.0 && r.num_fused_shared_experts > 0;
  return unless(!scales_shared, "routed_scale_on_output would multiply the {} fused shared slots by {} as well",
                r.num_fused_shared_experts, r.routed_scaling_factor);
}

}  // namespace

Support supports_rule_on(const Problem& problem, DeviceType device) {
  const MoeConfig& c = problem.moe;
  // One after the other: a later check may divide by what an earlier one made sure of.
  Support s = check_sizes(problem, device);
  if (s) s = check_groups(c);
  if (s) s = check_numbers(c.routing);
  if (s) s = check_method(c.routing);
  if (s) s = check_scale(c);
  return s;
}

Support supports_rule(const Problem& problem) {
  return supports_rule_on(problem, DeviceType::cpu);
}

}  // namespace conclave::router
