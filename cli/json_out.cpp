// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One function for each struct.
#include "json_out.hpp"

#include <cstdio>

namespace conclave::cli {
namespace {

Json to_json(const RoutingConfig& r) {
  return {{"method", name_of(r.method)},
          {"scoring", name_of(r.scoring)},
          {"score_after_topk", r.score_after_topk},
          {"has_bias", r.has_bias},
          {"hash_table", r.hash_table},
          {"num_expert_group", r.num_expert_group},
          {"topk_group", r.topk_group},
          {"group_score", name_of(r.group_score)},
          {"renormalize", name_of(r.renormalize)},
          {"epsilon", r.epsilon},
          {"routed_scaling_factor", r.routed_scaling_factor},
          {"num_fused_shared_experts", r.num_fused_shared_experts}};
}

Json to_json(const ActivationParams& p) {
  Json json = Json::object();
  if (p.alpha) json["alpha"] = *p.alpha;
  if (p.beta) json["beta"] = *p.beta;
  if (p.limit) json["limit"] = *p.limit;
  if (p.linear_beta) json["linear_beta"] = *p.linear_beta;
  return json;
}

}  // namespace

Json to_json(const MoeConfig& c) {
  return {{"num_experts", c.num_experts},
          {"top_k", c.top_k},
          {"hidden_size", c.hidden_size},
          {"intermediate_size", c.intermediate_size},
          {"latent_size", c.latent_size},
          {"zero_experts", c.zero_experts},
          {"max_num_tokens", c.max_num_tokens},
          {"dtype", name_of(c.dtype)},
          {"weight_dtype", name_of(c.weight_dtype)},
          {"activation", name_of(c.activation)},
          {"activation_params", to_json(c.activation_params)},
          {"w13_layout", name_of(c.w13_layout)},
          {"has_w13_bias", c.has_w13_bias},
          {"has_w2_bias", c.has_w2_bias},
          {"routing", to_json(c.routing)},
          {"apply_router_weight_on_input", c.apply_router_weight_on_input},
          {"routed_scale_on_output", c.routed_scale_on_output},
          {"shared", {{"intermediate_size", c.shared.intermediate_size}, {"sigmoid_gate", c.shared.sigmoid_gate}}}};
}

Json to_json(const ParallelConfig& p) {
  return {{"tp_size", p.tp_size},   {"dp_size", p.dp_size}, {"ep_size", p.ep_size},
          {"pcp_size", p.pcp_size}, {"sp_size", p.sp_size}, {"all2all", name_of(p.all2all)}};
}

Json to_json(const QuantConfig& q) {
  return {{"weights", name_of(q.weights)}, {"activations", name_of(q.activations)}};
}

Json to_json(const DeviceFacts& f) {
  return {{"device", to_string(f.device)},
          {"name", f.name},
          {"num_threads", f.num_threads},
          {"cpu_features",
           {{"avx2", f.cpu.avx2},
            {"avx512", f.cpu.avx512},
            {"avx512_bf16", f.cpu.avx512_bf16},
            {"avx512_vnni", f.cpu.avx512_vnni},
            {"amx_bf16", f.cpu.amx_bf16},
            {"amx_int8", f.cpu.amx_int8},
            {"slow_avx512_bf16", f.cpu.slow_avx512_bf16}}},
          {"l2_bytes", f.l2_bytes},
          {"bytes_per_second", f.bytes_per_second},
          {"f32_flops", f.f32_flops},
          {"bf16_flops", f.bf16_flops},
          {"f16_flops", f.f16_flops}};
}

Json to_json(const StagePlan& stage) {
  Json candidates = Json::array();
  for (const Candidate& c : stage.candidates)
    candidates.push_back({{"name", c.name}, {"fits", c.fits}, {"reason", c.reason}});
  return {{"chosen", stage.chosen}, {"candidates", candidates}};
}

Json to_json(const CostPoint& c) {
  return {{"num_tokens", c.num_tokens},
          {"active_experts", c.active_experts},
          {"weight_bytes", c.weight_bytes},
          {"activation_bytes", c.activation_bytes},
          {"flops", c.flops},
          {"seconds", c.seconds},
          {"memory_bound", c.memory_bound},
          {"tiles", c.tiles},
          {"launches", c.launches},
          {"forecast_seconds", c.forecast_seconds}};
}

Json to_json(const Plan& plan) {
  Json costs = Json::array();
  for (const CostPoint& cost : plan.costs) costs.push_back(to_json(cost));
  return {{"moe", to_json(plan.problem.moe)},
          {"quant", to_json(plan.problem.quant)},
          {"parallel", to_json(plan.problem.parallel)},
          {"device", to_json(plan.problem.device)},
          {"router", to_json(plan.router)},
          {"prepare_finalize", to_json(plan.prepare_finalize)},
          {"experts", to_json(plan.experts)},
          {"shared", plan.shared ? to_json(*plan.shared) : Json(nullptr)},
          {"owners", plan.owners},
          {"workspace_bytes", plan.workspace_bytes},
          {"costs", costs}};
}

void print_json(const Json& value) {
  // Names of tensors come from files: bytes that are no UTF-8 must not end the program.
  print_text(value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void print_text(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace conclave::cli
