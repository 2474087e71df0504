// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Each refusal with the value in the way; every preset is accepted.
#include "router/supports.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "router/run_router.hpp"

namespace conclave {
namespace {

Problem preset(RoutingMethod method) {
  return test::routing_problem(12, 3, routing_preset(method));
}

TEST(RouterSupports, EveryPreset) {
  for (const RoutingMethod method : all_routing_methods())
    for (const Entry<Router>& entry : test::routers_on_cpu())
      EXPECT_TRUE(entry.supports(preset(method))) << entry.name << " " << name_of(method);
}

struct Refusal {
  const char* reason;
  RoutingMethod method;
  std::function<void(MoeConfig&, Problem&)> change;
};

TEST(RouterSupports, RefusesWithTheValueInTheWay) {
  using enum RoutingMethod;
  const Refusal refusals[] = {
      {"cuda:1", default_,
       [](MoeConfig&, Problem& p) {
         p.device.device = {DeviceType::cuda, 1};
       }},
      {"fp8_e4m3", default_, [](MoeConfig& c, Problem&) { c.router_logits_dtype = DType::fp8_e4m3; }},
      {"top_k 13", default_, [](MoeConfig& c, Problem&) { c.top_k = 13; }},
      {"num_experts 0", default_, [](MoeConfig& c, Problem&) { c.num_experts = 0; }},
      {"num_expert_group 5", default_, [](MoeConfig& c, Problem&) { c.routing.num_expert_group = 5; }},
      {"topk_group 3", default_,
       [](MoeConfig& c, Problem&) { c.routing.num_expert_group = 2, c.routing.topk_group = 3; }},
      {"num_expert_group 0", default_, [](MoeConfig& c, Problem&) { c.routing.num_expert_group = 0; }},
      {"the 2 experts of topk_group 1", default_, [](MoeConfig& c, Problem&) { c.routing.num_expert_group = 6; }},
      {"epsilon -1", default_, [](MoeConfig& c, Problem&) { c.routing.epsilon = -1; }},
      {"routed_scaling_factor inf", default_,
       [](MoeConfig& c, Problem&) { c.routing.routed_scaling_factor = INFINITY; }},
      {"fused_shared_weight nan", default_, [](MoeConfig& c, Problem&) { c.routing.fused_shared_weight = NAN; }},
      {"num_fused_shared_experts -2", default_,
       [](MoeConfig& c, Problem&) { c.routing.num_fused_shared_experts = -2; }},
      {"sparsemixer_jitter -0.5", sparsemixer, [](MoeConfig& c, Problem&) { c.routing.sparsemixer_jitter = -0.5; }},
      {"zipf_exponent -3", simulated, [](MoeConfig& c, Problem&) { c.routing.zipf_exponent = -3; }},
      {"simulated takes no e_score_correction_bias", simulated,
       [](MoeConfig& c, Problem&) { c.routing.has_bias = true; }},
      {"sparsemixer has no groups", sparsemixer,
       [](MoeConfig& c, Problem&) { c.routing.num_expert_group = 2, c.routing.topk_group = 2; }},
      {"scoring sigmoid", sparsemixer, [](MoeConfig& c, Problem&) { c.routing.scoring = Scoring::sigmoid; }},
      {"custom takes no hash_table", custom, [](MoeConfig& c, Problem&) { c.routing.hash_table = true; }},
      {"e_score_correction_bias has no say", deepseek_v4,
       [](MoeConfig& c, Problem&) { c.routing.hash_table = true, c.routing.has_bias = true; }},
      {"hash_table chooses without groups", deepseek_v4,
       [](MoeConfig& c, Problem&) {
         c.routing.hash_table = true;
         c.routing.num_expert_group = 2, c.routing.topk_group = 2;
       }},
      {"the 1 fused shared slots by 2.5", default_,
       [](MoeConfig& c, Problem&) {
         c.routed_scale_on_output = true;
         c.routing.routed_scaling_factor = 2.5;
         c.routing.num_fused_shared_experts = 1;
       }},
  };
  for (const Refusal& refusal : refusals) {
    Problem p = preset(refusal.method);
    refusal.change(p.moe, p);
    const Support support = router::supports_rule(p);
    EXPECT_FALSE(support) << refusal.reason;
    EXPECT_NE(support.reason().find(refusal.reason), std::string::npos) << support.reason();
  }
}

}  // namespace
}  // namespace conclave
