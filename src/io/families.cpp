// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The table. A new architecture is one row here and, where its arithmetic is new, one rule in family_rules.cpp.
#include "io/families.hpp"

#include "base/error.hpp"
#include "conclave/checkpoint.hpp"
#include "io/family_layers.hpp"
#include "io/family_rules.hpp"
#include "io/json_text.hpp"

namespace conclave {
namespace {

using enum ExpertLayout;

constexpr ExpertNames kProj{each, "experts.{}.gate_proj.weight", "experts.{}.up_proj.weight",
                            "experts.{}.down_proj.weight"};
constexpr ExpertNames kProjNoGate{each, "", "experts.{}.up_proj.weight", "experts.{}.down_proj.weight"};
constexpr ExpertNames kW1W3W2{each, "experts.{}.w1.weight", "experts.{}.w3.weight", "experts.{}.w2.weight"};
constexpr ExpertNames kModule{fused, "experts.gate_up_proj", "", "experts.down_proj"};
constexpr ExpertNames kModuleNoGate{fused, "", "experts.up_proj", "experts.down_proj"};
constexpr ExpertNames kGranite{fused, "input_linear.weight", "", "output_linear.weight"};
constexpr ExpertNames kTransposed{fused_transposed, "experts.gate_up_proj", "", "experts.down_proj"};
constexpr ExpertNames kGptOss{fused_transposed,    "experts.gate_up_proj",      "",
                              "experts.down_proj", "experts.gate_up_proj_bias", "experts.down_proj_bias"};
constexpr ExpertNames kDbrx{flat, "experts.mlp.w1", "experts.mlp.v1", "experts.mlp.w2"};

constexpr std::string_view kSharedExperts = "shared_experts.";
constexpr std::string_view kSharedExpert = "shared_expert.";
constexpr Names kGate{"gate.weight"};
constexpr Names kGateBias{"gate.e_score_correction_bias"};

constexpr Family kFamilies[] = {
    {.model_type = "afmoe",
     .segments = {"mlp"},
     .io_segment = "mlp",
     .experts = {&kProj, &kModule},
     .router = {"router.gate.weight"},
     .correction_bias = {"expert_bias"},
     .shared = kSharedExperts,
     .sparse_layers = after_dense_layers,
     .rule = afmoe_rule},
    {.model_type = "dbrx",
     .segments = {"ffn"},
     .io_segment = "ffn",
     .experts = {&kDbrx},
     .router = {"router.layer.weight"},
     .sparse_layers = every_layer,
     .rule = dbrx_rule},
    {.model_type = "deepseek_v2",
     .segments = {"mlp"},
     .io_segment = "mlp",
     .experts = {&kProj, &kModule},
     .router = kGate,
     .shared = kSharedExperts,
     .sparse_layers = after_first_k_dense,
     .rule = deepseek_v2_rule},
    {.model_type = "deepseek_v3",
     .segments = {"mlp"},
     .io_segment = "mlp",
     .experts = {&kProj, &kModule},
     .router = kGate,
     .correction_bias = kGateBias,
     .shared = kSharedExperts,
     .sparse_layers = after_first_k_dense,
     .rule = deepseek_v3_rule},
    {.model_type = "dots1",
     .segments = {"mlp"},
     .io_segment = "mlp",
     .experts = {&kProj, &kModule},
     .router = kGate,
     .correction_bias = kGateBias,
     .shared = kSharedExperts,
     .sparse_layers = after_first_k_dense,
     .rule = dots1_rule},
    {.model_type = "ernie4_5_moe",
     .segments = {"mlp"},
     .io_segment = "mlp",
     .experts = {&kProj, &kModule},
     .router = kGate,
     .correction_bias = {"moe_statics.e_score_correction_bias", "gate.moe_statics.e_score_correction_bias"},
     .shared = kSharedExperts,
     .sparse_layers = ernie_layers,
     .rule = ernie_rule},
    {.model_type = "exaone_moe",
     .segments = {"mlp"},
     .io_segment = "mlp",
     .experts = {&kProj, &kModule},
     .router = kGate,
     .correction_bias = {"e_score_correction_bias", "gate.e_score_correction_bias"},
     .shared = kSharedExperts,
     .sparse_layers = after_first_k_dense,
     .rule = exaone_rule},
    {.model_type = "flex_olmo",
     .segments = {"mlp"},
     .io_segment = "mlp",
     .experts = {&kProj, &kModule},
     .router = kGate,
     .sparse_layers = every_layer,
     .rule = olmoe_rule},
    {.model_type = "glm4_moe",
     .segments = {"mlp"},
     .io_segment = "mlp",
     .experts = {&kProj, &kModule},
     .router = kGate,
     .correction_bias = kGateBias,
     .shared = kSharedExperts,
     .sparse_layers = after_first_k_dense,
     .rule = deepseek_v3_rule},
    {.model_type = "gpt_oss",
     .segments = {"mlp"},
     .io_segment = "mlp",
     .experts = {&kGptOss},
     .router = {"router.weight"},
     .router_bias = "router.bias",
     .sparse_layers = every_layer,
     .rule = gpt_oss_rule},
    {.model_type = "granitemoe",
     .segments = {"block_sparse_moe"},
     .io_segment = "block_sparse_moe",
     .experts = {&kGranite, &kModule},
     .router = {"router.layer.weight", "router.weight"},
     .sparse_layers = every_layer,
     .rule = granite_rule},
    {.model_type = "hunyuan_v1_moe",
     .segments = {"mlp"},
     .io_segment = "mlp",
     .experts = {&kProj, &kModule},
     .router = {"gate.wg.weight"},
     .shared = "shared_mlp.",
     .sparse_layers = every_layer,
     .rule = hunyuan_rule},
    {.model_type = "jamba",
     .segments = {"feed_forward"},
     .io_segment = "feed_forward",
     .experts = {&kProj, &kModule},
     .router = {"router.weight"},
     .sparse_layers = jamba_layers,
     .rule = jamba_rule},
    {.model_type = "lfm2_moe",
     .segments = {"feed_forward"},
     .io_segment = "feed_forward",
     .experts = {&kW1W3W2, &kModule},
     .router = kGate,
     .correction_bias = {"expert_bias"},
     .sparse_layers = after_dense_layers,
     .rule = lfm2_rule},
    {.model_type = "llama4",
     .segments = {"feed_forward"},
     .io_segment = "feed_forward",
     .experts = {&kTransposed},
     .router = {"router.weight"},
     .shared = kSharedExpert,
     .sparse_layers = llama4_layers,
     .rule = llama4_rule},
    {.model_type = "llama4_text",
     .segments = {"feed_forward"},
     .io_segment = "feed_forward",
     .experts = {&kTransposed},
     .router = {"router.weight"},
     .shared = kSharedExpert,
     .sparse_layers = llama4_layers,
     .rule = llama4_rule},
    {.model_type = "longcat_flash",
     .segments = {"mlp"},
     .io_segment = "mlp",
     .experts = {&kProj},
     .router = {"router.classifier.weight"},
     .correction_bias = {"router.e_score_correction_bias"},
     .sparse_layers = every_layer,
     .rule = longcat_rule},
    {.model_type = "minimax",
     .segments = {"block_sparse_moe", "mlp"},
     .io_segment = "mlp",
     .experts = {&kW1W3W2, &kModule},
     .router = kGate,
     .sparse_layers = every_layer,
     .rule = mixtral_rule},
    {.model_type = "minimax_m2",
     .segments = {"block_sparse_moe", "mlp"},
     .io_segment = "mlp",
     .experts = {&kW1W3W2, &kModule},
     .router = kGate,
     .correction_bias = {"e_score_correction_bias"},
     .sparse_layers = every_layer,
     .rule = minimax_m2_rule},
    {.model_type = "mixtral",
     .segments = {"block_sparse_moe", "mlp"},
     .io_segment = "mlp",
     .experts = {&kW1W3W2, &kModule},
     .router = kGate,
     .sparse_layers = every_layer,
     .rule = mixtral_rule},
    {.model_type = "nemotron_h",
     .segments = {"mixer"},
     .io_segment = "mixer",
     .experts = {&kProjNoGate, &kModuleNoGate},
     .router = kGate,
     .correction_bias = kGateBias,
     .shared = kSharedExperts,
     .latent_in = "fc1_latent_proj.weight",
     .latent_out = "fc2_latent_proj.weight",
     .sparse_layers = nemotron_layers,
     .rule = nemotron_rule},
    {.model_type = "olmoe",
     .segments = {"mlp"},
     .io_segment = "mlp",
     .experts = {&kProj, &kModule},
     .router = kGate,
     .sparse_layers = every_layer,
     .rule = olmoe_rule},
    {.model_type = "phimoe",
     .segments = {"block_sparse_moe", "mlp"},
     .io_segment = "mlp",
     .experts = {&kW1W3W2, &kModule},
     .router = {"gate.weight", "router.weight"},
     .sparse_layers = every_layer,
     .rule = phimoe_rule},
    {.model_type = "qwen2_moe",
     .segments = {"mlp"},
     .io_segment = "mlp",
     .experts = {&kProj, &kModule},
     .router = kGate,
     .shared = kSharedExpert,
     .shared_gate = "shared_expert_gate.weight",
     .sparse_layers = qwen_layers,
     .rule = qwen2_rule},
    {.model_type = "qwen3_moe",
     .segments = {"mlp"},
     .io_segment = "mlp",
     .experts = {&kProj, &kModule},
     .router = kGate,
     .sparse_layers = qwen_layers,
     .rule = qwen3_rule},
    {.model_type = "qwen3_next",
     .segments = {"mlp"},
     .io_segment = "mlp",
     .experts = {&kProj, &kModule},
     .router = kGate,
     .shared = kSharedExpert,
     .shared_gate = "shared_expert_gate.weight",
     .sparse_layers = qwen_layers,
     .rule = qwen3_next_rule},
    {.model_type = "solar_open",
     .segments = {"mlp"},
     .io_segment = "mlp",
     .experts = {&kProj, &kModule},
     .router = kGate,
     .correction_bias = kGateBias,
     .shared = kSharedExperts,
     .sparse_layers = every_layer,
     .rule = deepseek_v3_rule},
};

}  // namespace

std::span<const Family> families() noexcept {
  return kFamilies;
}

Family gguf_names_of(const Family& family) {
  static constexpr ExpertNames kExperts{stacked,
                                        "ffn_gate_exps.weight",
                                        "ffn_up_exps.weight",
                                        "ffn_down_exps.weight",
                                        "ffn_gate_exps.bias",
                                        "ffn_down_exps.bias",
                                        "ffn_up_exps.bias"};
  Family gguf = family;
  gguf.experts = {&kExperts, nullptr};
  gguf.router = {"ffn_gate_inp.weight"};
  if (!family.router_bias.empty()) gguf.router_bias = "ffn_gate_inp.bias";
  gguf.correction_bias = {"exp_probs_b.bias", "exp_probs_b"};
  gguf.shared = "";
  gguf.shared_parts = {"ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight"};
  gguf.shared_gate = "ffn_gate_inp_shexp.weight";
  return gguf;
}

std::vector<std::string> supported_model_types() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.emplace_back(family.model_type);
  return names;
}

const Family& family_of(const ModelConfig& config) {
  std::string known;
  for (const Family& family : kFamilies) {
    if (family.model_type == config.model_type()) return family;
    known += (known.empty() ? "" : ", ") + std::string(family.model_type);
  }
  fail(ErrorKind::bad_file, "{}: unknown model_type {}, expected one of {}", config.path(),
       in_quotes(config.model_type()), known);
}

MoeConfig moe_config_of(const Family& family, const ModelConfig& config) {
  MoeConfig moe;
  family.rule(config, moe);
  try {
    validate(moe);
  } catch (const Error& error) {
    fail(ErrorKind::bad_file, "{}: layer {}: {}", config.path(), config.layer(), error.what());
  }
  return moe;
}

}  // namespace conclave
