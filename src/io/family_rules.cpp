// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The rules. Three kinds of scores cover most families (softmax, sigmoid with a correction bias, softmax of the
// chosen); what differs is the renormalisation, which is spelled out in each rule because the last digits depend on it.
#include "io/family_rules.hpp"

#include "base/error.hpp"

namespace conclave {
namespace {

/// In sigmoid families: added to the sum of the chosen weights.
constexpr double kTinySum = 1e-20;

Activation activation_of(const ModelConfig& config, std::string_view key, const std::string& name) {
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "gelu") return Activation::gelu;
  // All of them the tanh approximation, in different arrangements of the same terms.
  if (name == "gelu_pytorch_tanh" || name == "gelu_new" || name == "gelu_fast") return Activation::gelu_tanh;
  if (name == "relu2") return Activation::relu2;
  config.refuse(key, "silu, gelu, gelu_pytorch_tanh or relu2");
}

void read_sizes(const ModelConfig& config, std::string_view intermediate_key, MoeConfig& moe) {
  // All published spellings of E and k.
  moe.num_experts = config.integer({"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"});
  moe.top_k = config.integer({"num_experts_per_tok", "moe_topk", "moe_k", "experts_per_token"});
  moe.hidden_size = config.integer({"hidden_size"});
  moe.intermediate_size = config.integer({intermediate_key});
  moe.activation = activation_of(config, "hidden_act", config.text("hidden_act", "silu"));
  // Newer families clamp gate and up; the rules that know it say so themselves.
  if (config.model_type() != "gpt_oss") config.expect("swiglu_limit", {});
}

void renormalise(MoeConfig& moe, Renormalize mode, double epsilon) {
  moe.routing.renormalize = mode;
  moe.routing.epsilon = epsilon;
}

/// softmax over all, top-k, divided by their sum or not.
void softmax_routing(MoeConfig& moe, bool normalised) {
  moe.routing = routing_preset(normalised ? RoutingMethod::renormalize_naive : RoutingMethod::default_);
  renormalise(moe, normalised ? Renormalize::sum_plus_epsilon : Renormalize::none, 0.0);
}

void set_shared(MoeConfig& moe, std::int64_t count, std::int64_t intermediate_size, const ModelConfig& config,
                std::string_view key) {
  constexpr std::int64_t kMaxShared = 1'000'000'000;  // Keeps the product within 64 bits.
  if (count < 0 || count > kMaxShared || intermediate_size < 0 || intermediate_size > kMaxShared)
    config.refuse(key, fmt::format("0 to {}", kMaxShared));
  moe.shared.intermediate_size = count * intermediate_size;
}

/// Sigmoid scores, chosen with a correction bias in the best groups, divided by their sum, scaled.
void sigmoid_bias_routing(const ModelConfig& config, MoeConfig& moe, bool normalised_by_default) {
  // dots1 calls its choice a scoring function.
  config.expect("scoring_func", {"sigmoid", "noaux_tc"});
  config.expect("topk_method", {"noaux_tc"});
  // Required, not defaulted: implementations disagree about what an absent field means (1 group or 8, factor 1 or 2.5).
  moe.routing = routing_preset(RoutingMethod::deepseek_v3);
  moe.routing.num_expert_group = config.integer({"n_group"});
  moe.routing.topk_group = config.integer({"topk_group"});
  moe.routing.routed_scaling_factor = config.number({"routed_scaling_factor"});
  if (config.boolean("norm_topk_prob", normalised_by_default))
    renormalise(moe, Renormalize::sum_plus_epsilon, kTinySum);
  else
    renormalise(moe, Renormalize::none, 0.0);
  const std::int64_t groups = moe.routing.num_expert_group;
  if (groups > 1 && moe.num_experts / groups < 2)
    config.refuse("n_group", "groups of two experts or more: a group's score is the sum of its best two");
}

void deepseek_v3_like(const ModelConfig& config, MoeConfig& moe, Keys shared_key, bool normalised_by_default) {
  read_sizes(config, "moe_intermediate_size", moe);
  sigmoid_bias_routing(config, moe, normalised_by_default);
  set_shared(moe, config.integer(shared_key), moe.intermediate_size, config, *shared_key.begin());
}

void qwen_like(const ModelConfig& config, MoeConfig& moe, bool normalised_by_default) {
  read_sizes(config, "moe_intermediate_size", moe);
  softmax_routing(moe, config.boolean("norm_topk_prob", normalised_by_default));
}

void qwen_shared(const ModelConfig& config, MoeConfig& moe) {
  constexpr std::string_view kKey = "shared_expert_intermediate_size";
  set_shared(moe, 1, config.integer({kKey}), config, kKey);
  moe.shared.sigmoid_gate = true;
}

}  // namespace

void afmoe_rule(const ModelConfig& config, MoeConfig& moe) {
  config.expect("score_func", {"sigmoid"});
  config.expect("route_norm", {true});
  config.expect("n_group", {1});
  config.expect("topk_group", {1});
  read_sizes(config, "moe_intermediate_size", moe);
  moe.routing = routing_preset(RoutingMethod::minimax2);
  renormalise(moe, Renormalize::sum_plus_epsilon, kTinySum);
  moe.routing.routed_scaling_factor = config.number({"route_scale"}, 1.0);
  set_shared(moe, config.integer({"num_shared_experts"}, 2), moe.intermediate_size, config, "num_shared_experts");
}

void dbrx_rule(const ModelConfig& config, MoeConfig& moe) {
  const ModelConfig ffn = config.section("ffn_config");
  moe.hidden_size = config.integer({"d_model"});
  moe.num_experts = ffn.integer({"moe_num_experts"});
  moe.top_k = ffn.integer({"moe_top_k"});
  moe.intermediate_size = ffn.integer({"ffn_hidden_size"});
  const ModelConfig act = ffn.has("ffn_act_fn") ? ffn.section("ffn_act_fn") : ffn;
  moe.activation = activation_of(act, "name", ffn.has("ffn_act_fn") ? act.text("name", "silu") : "silu");
  // The order p of the norm that weights are divided by; positive weights have their sum as norm of order 1. Null
  // means no division, and so does an absent key: configurations are written with their defaults.
  ffn.expect("moe_normalize_expert_weights", {1});
  softmax_routing(moe, ffn.has("moe_normalize_expert_weights"));
}

void deepseek_v2_rule(const ModelConfig& config, MoeConfig& moe) {
  config.expect("scoring_func", {"softmax"});
  config.expect("topk_method", {"greedy", "group_limited_greedy"});
  // The public implementations disagree about true: one ignores it, another divides and then does not scale.
  config.expect("norm_topk_prob", {false});
  config.expect("mlp_bias", {false});
  read_sizes(config, "moe_intermediate_size", moe);
  softmax_routing(moe, false);
  if (config.text("topk_method", "greedy") == "group_limited_greedy") {
    moe.routing.num_expert_group = config.integer({"n_group"});
    moe.routing.topk_group = config.integer({"topk_group"});
    moe.routing.group_score = GroupScore::max;
  }
  moe.routing.routed_scaling_factor = config.number({"routed_scaling_factor"}, 1.0);
  set_shared(moe, config.integer({"n_shared_experts"}, 2), moe.intermediate_size, config, "n_shared_experts");
}

void deepseek_v3_rule(const ModelConfig& config, MoeConfig& moe) {
  deepseek_v3_like(config, moe, {"n_shared_experts"}, true);
}

void dots1_rule(const ModelConfig& config, MoeConfig& moe) {
  deepseek_v3_like(config, moe, {"n_shared_experts"}, false);
}

void exaone_rule(const ModelConfig& config, MoeConfig& moe) {
  deepseek_v3_like(config, moe, {"num_shared_experts"}, true);
}

void ernie_rule(const ModelConfig& config, MoeConfig& moe) {
  config.expect("moe_use_aux_free", {true});
  read_sizes(config, "moe_intermediate_size", moe);
  softmax_routing(moe, true);
  moe.routing.has_bias = true;
  renormalise(moe, Renormalize::max_epsilon, config.number({"moe_norm_min"}, 1e-12));
  set_shared(moe, config.integer({"moe_num_shared_experts"}, 2), moe.intermediate_size, config,
             "moe_num_shared_experts");
  // The routed experts have no biases in any case.
  if (moe.shared.intermediate_size > 0) config.expect("use_bias", {false});
}

void gpt_oss_rule(const ModelConfig& config, MoeConfig& moe) {
  config.expect("hidden_act", {"silu"});
  read_sizes(config, "intermediate_size", moe);
  moe.activation = Activation::swigluoai;
  moe.activation_params.alpha = config.number({"swiglu_alpha"}, 1.702);
  moe.activation_params.limit = config.number({"swiglu_limit"}, 7.0);
  moe.w13_layout = W13Layout::interleaved;
  moe.has_w13_bias = true;
  moe.has_w2_bias = true;
  moe.routing = routing_preset(RoutingMethod::renormalize);
}

void granite_rule(const ModelConfig& config, MoeConfig& moe) {
  read_sizes(config, "intermediate_size", moe);
  moe.routing = routing_preset(RoutingMethod::renormalize);
}

void hunyuan_rule(const ModelConfig& config, MoeConfig& moe) {
  read_sizes(config, "intermediate_size", moe);
  // Both are in published configurations, where they repeat what the implementation assumes.
  config.expect("moe_intermediate_size", {moe.intermediate_size});
  config.expect("num_shared_expert", {1});
  config.expect("norm_topk_prob", {true});
  softmax_routing(moe, true);
  set_shared(moe, 1, moe.intermediate_size, config, "intermediate_size");
}

void jamba_rule(const ModelConfig& config, MoeConfig& moe) {
  read_sizes(config, "intermediate_size", moe);
  softmax_routing(moe, false);
}

void lfm2_rule(const ModelConfig& config, MoeConfig& moe) {
  read_sizes(config, "moe_intermediate_size", moe);
  config.expect("hidden_act", {"silu"});
  moe.routing = routing_preset(RoutingMethod::minimax2);
  moe.routing.has_bias = config.boolean("use_expert_bias", true);
  moe.routing.routed_scaling_factor = config.number({"routed_scaling_factor"}, 1.0);
  const bool normalised = config.boolean("norm_topk_prob", true);
  renormalise(moe, normalised ? Renormalize::sum_plus_epsilon : Renormalize::none, normalised ? 1e-6 : 0.0);
  if (!moe.routing.has_bias) moe.routing.method = normalised ? RoutingMethod::sigmoid_renorm : RoutingMethod::sigmoid;
}

void llama4_rule(const ModelConfig& config, MoeConfig& moe) {
  read_sizes(config, "intermediate_size", moe);
  // Each chosen expert sees the input times its own weight, which one weight for all experts cannot express.
  config.expect("num_experts_per_tok", {1});
  moe.routing = routing_preset(RoutingMethod::llama4);
  moe.apply_router_weight_on_input = true;
  set_shared(moe, 1, moe.intermediate_size, config, "intermediate_size");
}

void longcat_rule(const ModelConfig& config, MoeConfig& moe) {
  config.expect("zero_expert_type", {"identity"});
  config.expect("router_bias", {false});
  config.expect("norm_topk_prob", {false});
  read_sizes(config, "expert_ffn_hidden_size", moe);
  moe.zero_experts = config.integer({"zero_expert_num"}, 0);
  if (moe.num_experts < 0 || moe.zero_experts < 0 || moe.zero_experts > 1'000'000)
    config.refuse("zero_expert_num", "0 to 1000000");
  moe.num_experts += moe.zero_experts;
  softmax_routing(moe, false);
  moe.routing.has_bias = true;
  moe.routing.routed_scaling_factor = config.number({"routed_scaling_factor"}, 1.0);
}

void minimax_m2_rule(const ModelConfig& config, MoeConfig& moe) {
  config.expect("scoring_func", {"sigmoid"});
  config.expect("use_routing_bias", {true});
  config.expect("shared_intermediate_size", {0});
  read_sizes(config, "intermediate_size", moe);
  moe.routing = routing_preset(RoutingMethod::minimax2);
  renormalise(moe, Renormalize::sum_plus_epsilon, 0.0);
}

void mixtral_rule(const ModelConfig& config, MoeConfig& moe) {
  config.expect("shared_intermediate_size", {0});
  read_sizes(config, "intermediate_size", moe);
  softmax_routing(moe, true);
}

void nemotron_rule(const ModelConfig& config, MoeConfig& moe) {
  config.expect("mlp_bias", {false});
  deepseek_v3_like(config, moe, {"n_shared_experts"}, true);
  moe.activation = without_mul(activation_of(config, "mlp_hidden_act", config.text("mlp_hidden_act", "relu2")));
  // The number of shared experts does not enter: this is their width together.
  constexpr std::string_view kWidth = "moe_shared_expert_intermediate_size";
  set_shared(moe, 1, config.integer({kWidth}), config, kWidth);
  moe.latent_size = config.integer({"moe_latent_size"}, 0);
}

void olmoe_rule(const ModelConfig& config, MoeConfig& moe) {
  read_sizes(config, "intermediate_size", moe);
  softmax_routing(moe, config.boolean("norm_topk_prob", false));
}

void phimoe_rule(const ModelConfig& config, MoeConfig& moe) {
  read_sizes(config, "intermediate_size", moe);
  // The mixer picks one expert, then one of the rest, whatever the configuration says.
  config.expect("num_experts_per_tok", {2});
  moe.routing = routing_preset(RoutingMethod::sparsemixer);
  moe.routing.sparsemixer_jitter = config.number({"router_jitter_noise"}, 0.01);
}

void qwen2_rule(const ModelConfig& config, MoeConfig& moe) {
  qwen_like(config, moe, false);
  qwen_shared(config, moe);
}

void qwen3_rule(const ModelConfig& config, MoeConfig& moe) {
  qwen_like(config, moe, false);
}

void qwen3_next_rule(const ModelConfig& config, MoeConfig& moe) {
  qwen_like(config, moe, true);
  qwen_shared(config, moe);
}

}  // namespace conclave
