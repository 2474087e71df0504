// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The rules of lower.hpp, one function each.
#include "kernel/lower.hpp"

#include <fmt/format.h>

#include "kernel/replicas.hpp"

namespace conclave {
namespace {

Problem without_epilogue(const Problem& layer) {
  Problem p = layer;
  p.moe.hidden_size = layer.moe.expert_width();
  p.moe.latent_size = 0;
  p.moe.shared = {};
  p.moe.routed_scale_on_output = false;
  // With an epilogue the routed sum lands in scratch and the caller's memory is written last, by the layer.
  p.moe.in_place = layer.moe.in_place && !has_epilogue(layer.moe);
  return p;
}

}  // namespace

bool has_epilogue(const MoeConfig& c) noexcept {
  return c.latent_size > 0 || c.shared.intermediate_size > 0 || c.zero_experts > 0 ||
         (c.routed_scale_on_output && c.routing.routed_scaling_factor != 1.0);
}

Problem modular_problem(const Problem& layer) {
  Problem p = without_epilogue(layer);
  // Parts see slots: choosing among replicas is the layer's.
  p.moe.num_experts = num_slots_of_experts(layer);
  p.parallel.enable_eplb = false;
  p.parallel.num_redundant_experts = 0;
  p.moe.top_k = layer.moe.num_slots();
  p.moe.zero_experts = 0;
  p.moe.routing = routing_preset(RoutingMethod::default_);
  // More slots than experts with weights is possible (zero experts, fused slots); ids may repeat -1, so k > E is legal
  // for the parts although a router could not choose it.
  return p;
}

std::optional<std::string> monolithic_refusal(const Problem& layer) {
  const MoeConfig& c = layer.moe;
  if (c.zero_experts > 0)
    return fmt::format("monolithic: the layer must see the ids to apply {} zero experts", c.zero_experts);
  if (c.routing.num_fused_shared_experts > 0)
    return fmt::format("monolithic: {} fused shared slots are added behind the router",
                       c.routing.num_fused_shared_experts);
  if (layer.parallel.enable_eplb) return "monolithic: enable_eplb chooses replicas between the router and the experts";
  if (c.routing.hash_table) return "monolithic: hash-table routing needs token ids beside the logits";
  return std::nullopt;
}

Problem monolithic_problem(const Problem& layer) {
  Problem p = without_epilogue(layer);
  if (layer.moe.routed_scale_on_output) p.moe.routing.routed_scaling_factor = 1.0;
  return p;
}

std::optional<Problem> shared_problem(const Problem& layer) {
  const MoeConfig& c = layer.moe;
  if (c.shared.intermediate_size == 0) return std::nullopt;
  Problem p = layer;
  p.quant = {};  // Keys are those of the routed experts; the shared expert's weights have a dtype.
  p.moe = {};
  p.moe.num_experts = 1;
  p.moe.top_k = 1;
  p.moe.hidden_size = c.hidden_size;
  p.moe.intermediate_size = c.shared.intermediate_size;
  p.moe.max_num_tokens = c.max_num_tokens;
  p.moe.dtype = c.dtype;
  p.moe.weight_dtype = c.weight_dtype;
  p.moe.activation = c.activation;
  p.moe.activation_params = c.activation_params;
  p.moe.w13_layout = c.w13_layout;
  // Every rank of an expert-parallel group computes its own tokens' shared expert.
  p.parallel = {};
  return p;
}

}  // namespace conclave
