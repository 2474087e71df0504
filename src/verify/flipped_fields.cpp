// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the registry. Out: for each field of the problem and each experts part, proof that the field is not ignored: with
// the field changed and everything else the same, the result changes or somebody refuses.
#include <fmt/format.h>

#include "conclave/error.hpp"
#include "conclave/verify.hpp"
#include "verify/element.hpp"
#include "verify/layer_run.hpp"
#include "verify/sections.hpp"

namespace conclave::verify_detail {
namespace {

constexpr std::int64_t kFlipTokens = 9;

/// Everything that one layer can have at once.
MoeConfig rich_layer() {
  MoeConfig c;
  c.num_experts = 6;
  c.top_k = 2;
  c.hidden_size = 24;
  c.intermediate_size = 17;
  c.max_num_tokens = kFlipTokens;
  c.dtype = c.weight_dtype = c.router_logits_dtype = DType::f32;
  c.activation = Activation::swigluoai_uninterleave;
  c.activation_params = {1.3, 0.6, 1.1, std::nullopt};
  c.w13_layout = W13Layout::interleaved;
  c.has_w13_bias = c.has_w2_bias = true;
  c.routing = routing_preset(RoutingMethod::deepseek_v3);
  c.routing.num_expert_group = 3;
  c.routing.topk_group = 2;
  c.routing.routed_scaling_factor = 2.5;
  c.shared = {9, true};
  return c;
}

/// One pick, its weight on the input, and the activation with the most constants.
MoeConfig input_weighted_layer() {
  MoeConfig c = rich_layer();
  c.top_k = 1;
  c.activation = Activation::situ;
  c.activation_params = {std::nullopt, 1.2, std::nullopt, 0.8};
  c.routing = routing_preset(RoutingMethod::sigmoid);
  c.apply_router_weight_on_input = true;
  c.shared = {};
  return c;
}

/// Identity experts, a narrow routed width, a softmax router.
MoeConfig wide_layer() {
  MoeConfig c = rich_layer();
  c.activation = Activation::silu;
  c.activation_params = {};
  c.routing = routing_preset(RoutingMethod::default_);
  c.latent_size = 13;
  c.zero_experts = 2;
  return c;
}

MoeConfig sparsemixer_layer() {
  MoeConfig c = rich_layer();
  c.routing = routing_preset(RoutingMethod::sparsemixer);
  c.routing.sparsemixer_jitter = 0.2;
  return c;
}

MoeConfig fused_shared_layer() {
  MoeConfig c = rich_layer();
  c.routing.num_fused_shared_experts = 1;
  return c;
}

/// What must happen when a field is flipped.
enum class Must : std::uint8_t {
  change_or_refuse,
  refuse,  ///< The tensors that are given cannot mean anything under the flipped field.
};

struct Flip {
  std::string_view field;
  MoeConfig (*base)();
  void (*apply)(Problem& problem);
  Must must = Must::change_or_refuse;
};

// The same tensors are offered with the flipped configuration: sizes and dtypes that no longer fit must be refused.
constexpr Flip kFlips[] = {
    {"num_experts", rich_layer, [](Problem& p) { p.moe.num_experts = 9; }, Must::refuse},
    {"top_k", rich_layer, [](Problem& p) { p.moe.top_k = 1; }},
    {"hidden_size", rich_layer, [](Problem& p) { p.moe.hidden_size += 1; }, Must::refuse},
    {"intermediate_size", rich_layer, [](Problem& p) { p.moe.intermediate_size -= 1; }, Must::refuse},
    {"latent_size", rich_layer, [](Problem& p) { p.moe.latent_size = 13; }, Must::refuse},
    {"latent_size off", wide_layer, [](Problem& p) { p.moe.latent_size = 0; }, Must::refuse},
    {"zero_experts", rich_layer, [](Problem& p) { p.moe.zero_experts = 1; }, Must::refuse},
    {"zero_experts other", wide_layer, [](Problem& p) { p.moe.zero_experts = 1; }, Must::refuse},
    {"max_num_tokens", rich_layer, [](Problem& p) { p.moe.max_num_tokens = kFlipTokens - 1; }, Must::refuse},
    {"dtype", rich_layer, [](Problem& p) { p.moe.dtype = DType::bf16; }, Must::refuse},
    {"weight_dtype", rich_layer, [](Problem& p) { p.moe.weight_dtype = DType::bf16; }, Must::refuse},
    {"router_logits_dtype", rich_layer, [](Problem& p) { p.moe.router_logits_dtype = DType::bf16; }},
    {"activation", rich_layer,
     [](Problem& p) {
       p.moe.activation = Activation::swiglustep;
       p.moe.activation_params = {std::nullopt, std::nullopt, 1.1, std::nullopt};
     }},
    {"activation not gated", wide_layer, [](Problem& p) { p.moe.activation = Activation::silu_no_mul; }, Must::refuse},
    {"activation gelu", wide_layer, [](Problem& p) { p.moe.activation = Activation::gelu; }},
    {"activation gelu_tanh", wide_layer, [](Problem& p) { p.moe.activation = Activation::gelu_tanh; }},
    {"activation relu2", wide_layer, [](Problem& p) { p.moe.activation = Activation::relu2; }},
    {"activation_params.alpha", rich_layer, [](Problem& p) { p.moe.activation_params.alpha = 1.7; }},
    {"activation_params.beta", rich_layer, [](Problem& p) { p.moe.activation_params.beta = 1.0; }},
    {"activation_params.limit", rich_layer, [](Problem& p) { p.moe.activation_params.limit = 0.6; }},
    {"activation_params.limit of silu", wide_layer, [](Problem& p) { p.moe.activation_params.limit = 0.6; }},
    {"activation_params.alpha of silu", wide_layer, [](Problem& p) { p.moe.activation_params.alpha = 0.6; },
     Must::refuse},
    {"activation_params.beta of situ", input_weighted_layer, [](Problem& p) { p.moe.activation_params.beta = 2.0; }},
    {"activation_params.linear_beta", input_weighted_layer,
     [](Problem& p) { p.moe.activation_params.linear_beta.reset(); }},
    {"w13_layout gate_up", rich_layer, [](Problem& p) { p.moe.w13_layout = W13Layout::gate_up; }},
    {"w13_layout up_gate", rich_layer, [](Problem& p) { p.moe.w13_layout = W13Layout::up_gate; }},
    {"has_w13_bias", rich_layer, [](Problem& p) { p.moe.has_w13_bias = false; }, Must::refuse},
    {"has_w2_bias", rich_layer, [](Problem& p) { p.moe.has_w2_bias = false; }, Must::refuse},
    {"apply_router_weight_on_input", input_weighted_layer,
     [](Problem& p) { p.moe.apply_router_weight_on_input = false; }},
    {"apply_router_weight_on_input with two picks", rich_layer,
     [](Problem& p) { p.moe.apply_router_weight_on_input = true; }, Must::refuse},
    {"shared.intermediate_size", rich_layer, [](Problem& p) { p.moe.shared.intermediate_size = 8; }, Must::refuse},
    {"shared none", rich_layer, [](Problem& p) { p.moe.shared = {}; }, Must::refuse},
    {"shared.sigmoid_gate", rich_layer, [](Problem& p) { p.moe.shared.sigmoid_gate = false; }, Must::refuse},
    {"in_place", rich_layer, [](Problem& p) { p.moe.in_place = true; }, Must::refuse},
    {"routing.method", rich_layer, [](Problem& p) { p.moe.routing = routing_preset(RoutingMethod::renormalize); }},
    {"routing.method sparsemixer", wide_layer,
     [](Problem& p) { p.moe.routing = routing_preset(RoutingMethod::sparsemixer); }},
    {"routing.method simulated", wide_layer,
     [](Problem& p) { p.moe.routing = routing_preset(RoutingMethod::simulated); }},
    {"routing.method custom", wide_layer, [](Problem& p) { p.moe.routing = routing_preset(RoutingMethod::custom); },
     Must::refuse},
    {"routing.scoring", rich_layer, [](Problem& p) { p.moe.routing.scoring = Scoring::sqrt_softplus; }},
    {"routing.score_after_topk", wide_layer, [](Problem& p) { p.moe.routing.score_after_topk = true; }},
    {"routing.has_bias", rich_layer, [](Problem& p) { p.moe.routing.has_bias = false; }, Must::refuse},
    {"routing.hash_table", rich_layer, [](Problem& p) { p.moe.routing.hash_table = true; }, Must::refuse},
    {"routing.num_expert_group", rich_layer,
     [](Problem& p) { p.moe.routing.num_expert_group = p.moe.routing.topk_group = 1; }},
    {"routing.topk_group", rich_layer, [](Problem& p) { p.moe.routing.topk_group = 1; }},
    {"routing.group_score", rich_layer, [](Problem& p) { p.moe.routing.group_score = GroupScore::max; }},
    {"routing.renormalize", rich_layer, [](Problem& p) { p.moe.routing.renormalize = Renormalize::none; }},
    {"routing.epsilon", rich_layer, [](Problem& p) { p.moe.routing.epsilon = 0.25; }},
    {"routing.routed_scaling_factor", rich_layer, [](Problem& p) { p.moe.routing.routed_scaling_factor = 1.5; }},
    {"routing.num_fused_shared_experts", rich_layer, [](Problem& p) { p.moe.routing.num_fused_shared_experts = 1; },
     Must::refuse},
    {"routing.fused_shared_weight", fused_shared_layer, [](Problem& p) { p.moe.routing.fused_shared_weight = 0.4; }},
    {"routing.sparsemixer_jitter", sparsemixer_layer, [](Problem& p) { p.moe.routing.sparsemixer_jitter = 0.01; }},
    {"quant.weights", rich_layer, [](Problem& p) { p.quant.weights = QuantKey::fp8_block128; }, Must::refuse},
    {"quant.activations", rich_layer, [](Problem& p) { p.quant.activations = QuantKey::fp8_token; }},
    {"quant.activations static", rich_layer, [](Problem& p) { p.quant.activations = QuantKey::fp8_tensor; },
     Must::refuse},
    {"parallel.enable_eplb", rich_layer, [](Problem& p) { p.parallel.enable_eplb = true; }, Must::refuse},
    {"parallel.num_redundant_experts", rich_layer, [](Problem& p) { p.parallel.num_redundant_experts = 2; },
     Must::refuse},
    {"parallel all2all", rich_layer,
     [](Problem& p) { p.parallel = make_parallel(1, 0, 1, 0, 2, 0, 1, true, All2All::low_latency); }, Must::refuse},
    {"device", rich_layer,
     [](Problem& p) {
       DeviceType& type = p.device.device.type;
       type = type == DeviceType::cpu ? DeviceType::cuda : DeviceType::cpu;
     },
     Must::refuse},
};

/// The result, or nothing where somebody refuses.
std::optional<Tensor> run_or_refuse(const Session& s, const std::string& experts, const LayerData& data) {
  try {
    return run_layer(s.registry, experts, data, s.stream);
  } catch (const Error&) {
    return std::nullopt;
  }
}

void run_flip(const Session& s, const std::string& experts, std::uint64_t index, const Flip& flip) {
  LayerData data = make_layer_data(flip.base(), s.device, kFlipTokens, s.seed_of(3, index));
  const std::string label = fmt::format("field {}", flip.field);
  if (!s.reporter.wants(experts, label)) return;
  s.reporter.run(experts, label, "flipped_field", [&] {
    const std::optional<Tensor> before = run_or_refuse(s, experts, data);
    if (!before) return Outcome::skip();  // The part does not do the original either.
    flip.apply(data.problem);
    const std::optional<Tensor> after = run_or_refuse(s, experts, data);
    Outcome outcome;
    if (!after) return outcome;
    if (flip.must == Must::refuse) return Outcome::failed("ran, although the tensors do not fit the field");
    outcome.error = relative_error(*after, *before);
    if (bitwise_equal(*after, *before)) return Outcome::failed("the field is ignored: same result, bit for bit");
    return outcome;
  });
  s.reporter.finished(experts, label);
}

}  // namespace

void verify_flipped_fields(Session& session) {
  for (const auto& experts : session.registry.experts.entries()) {
    std::uint64_t index = 0;
    for (const Flip& flip : kFlips) {
      ++index;
      if (session.options.quick && index % 4 != 0) continue;
      run_flip(session, experts.name, index, flip);
    }
  }
}

}  // namespace conclave::verify_detail
