// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What each config.json says, as MoeConfig; the fields that change the arithmetic; and what is refused by name.
#include "io/families.hpp"

#include <gtest/gtest.h>

#include <set>

#include "conclave/checkpoint.hpp"
#include "io/model_copy.hpp"

namespace conclave::test {
namespace {

MoeConfig rule(const nlohmann::json& json, std::int64_t layer = 0) {
  const ModelConfig config(json.dump(), "config.json");
  return moe_config_of(family_of(config), config.at_layer(layer));
}

nlohmann::json config_of(const std::string& family) {
  return nlohmann::json::parse(read_file(family_folder(family) + "/config.json"));
}

/// The rule of `family` with some fields replaced (null: absent).
MoeConfig with(const std::string& family, const nlohmann::json& changes, std::int64_t layer = 0) {
  nlohmann::json json = config_of(family);
  for (const auto& [key, value] : changes.items()) json[key] = value;
  return rule(json, layer);
}

std::vector<bool> layers(const std::string& family, const nlohmann::json& changes) {
  nlohmann::json json = config_of(family);
  for (const auto& [key, value] : changes.items()) json[key] = value;
  const ModelConfig config(json.dump(), "config.json");
  return family_of(config).sparse_layers(config);
}

using Layers = std::vector<bool>;

TEST(Families, AreSortedAndThoseThatWeSay) {
  const std::set<std::string> expected = {
      "afmoe",     "dbrx",        "deepseek_v2",   "deepseek_v3", "dots1",      "ernie4_5_moe",   "exaone_moe",
      "flex_olmo", "glm4_moe",    "gpt_oss",       "granitemoe",  "jamba",      "hunyuan_v1_moe", "lfm2_moe",
      "llama4",    "llama4_text", "longcat_flash", "minimax",     "minimax_m2", "mixtral",        "nemotron_h",
      "olmoe",     "phimoe",      "qwen2_moe",     "qwen3_moe",   "qwen3_next", "solar_open"};
  const std::vector<std::string> types = supported_model_types();
  EXPECT_EQ(std::set<std::string>(types.begin(), types.end()), expected);
  EXPECT_TRUE(std::is_sorted(types.begin(), types.end()));
}

TEST(Families, SizesComeFromTheConfig) {
  const MoeConfig m = rule(config_of("deepseek_v3"));
  EXPECT_EQ(m.num_experts, 16);
  EXPECT_EQ(m.top_k, 4);
  EXPECT_EQ(m.hidden_size, 64);
  EXPECT_EQ(m.intermediate_size, 40);
  EXPECT_EQ(m.shared.intermediate_size, 40);
  EXPECT_EQ(rule(config_of("deepseek_v2")).shared.intermediate_size, 80);
  EXPECT_EQ(rule(config_of("qwen2_moe")).shared.intermediate_size, 72);
  EXPECT_TRUE(rule(config_of("qwen2_moe")).shared.sigmoid_gate);
  EXPECT_FALSE(rule(config_of("deepseek_v2")).shared.sigmoid_gate);
  EXPECT_EQ(rule(config_of("dbrx")).hidden_size, 48);
  EXPECT_EQ(rule(config_of("hunyuan_v1_moe"), 0).top_k, 4);
  EXPECT_EQ(rule(config_of("hunyuan_v1_moe"), 1).top_k, 2);
  EXPECT_EQ(rule(config_of("longcat_flash")).num_experts, 12);
  EXPECT_EQ(rule(config_of("longcat_flash")).zero_experts, 4);
  EXPECT_EQ(rule(config_of("nemotron_h_latent")).latent_size, 24);
}

TEST(Families, RoutingIsSpelledOutExactly) {
  RoutingConfig r = rule(config_of("deepseek_v3")).routing;
  EXPECT_EQ(r.method, RoutingMethod::deepseek_v3);
  EXPECT_EQ(r.scoring, Scoring::sigmoid);
  EXPECT_EQ(r.num_expert_group, 4);
  EXPECT_EQ(r.topk_group, 2);
  EXPECT_EQ(r.group_score, GroupScore::top2_sum);
  EXPECT_EQ(r.renormalize, Renormalize::sum_plus_epsilon);
  EXPECT_EQ(r.epsilon, 1e-20);
  EXPECT_EQ(r.routed_scaling_factor, 2.5);
  EXPECT_TRUE(r.has_bias);

  r = rule(config_of("deepseek_v2")).routing;
  EXPECT_EQ(r.scoring, Scoring::softmax);
  EXPECT_EQ(r.group_score, GroupScore::max);
  EXPECT_EQ(r.num_expert_group, 4);
  EXPECT_EQ(r.renormalize, Renormalize::none);
  EXPECT_EQ(r.routed_scaling_factor, 1.7);
  EXPECT_EQ(rule(config_of("deepseek_v2_greedy")).routing.num_expert_group, 1);

  r = rule(config_of("ernie4_5_moe")).routing;
  EXPECT_EQ(r.renormalize, Renormalize::max_epsilon);
  EXPECT_EQ(r.epsilon, 1e-12);
  EXPECT_TRUE(r.has_bias);
  EXPECT_EQ(with("ernie4_5_moe", {{"moe_norm_min", 0.25}}).routing.epsilon, 0.25);

  r = rule(config_of("lfm2_moe")).routing;
  EXPECT_EQ(r.epsilon, 1e-6);
  EXPECT_EQ(r.routed_scaling_factor, 1.3);
  EXPECT_TRUE(r.has_bias);
  EXPECT_FALSE(with("lfm2_moe", {{"use_expert_bias", false}}).routing.has_bias);

  EXPECT_EQ(rule(config_of("minimax_m2")).routing.epsilon, 0.0);
  EXPECT_EQ(rule(config_of("afmoe")).routing.epsilon, 1e-20);
  EXPECT_EQ(rule(config_of("phimoe")).routing.sparsemixer_jitter, 0.1);
  EXPECT_TRUE(rule(config_of("granitemoe")).routing.score_after_topk);
  EXPECT_TRUE(rule(config_of("llama4")).apply_router_weight_on_input);
  EXPECT_EQ(rule(config_of("dbrx")).routing.renormalize, Renormalize::sum_plus_epsilon);
}

TEST(Families, FlagsOfTheConfigChangeTheRule) {
  for (const char* family : {"qwen2_moe", "qwen3_moe", "qwen3_next", "olmoe", "flex_olmo", "dots1", "glm4_moe",
                             "deepseek_v3", "solar_open", "exaone_moe", "nemotron_h", "lfm2_moe"}) {
    EXPECT_NE(with(family, {{"norm_topk_prob", true}}, 1).routing, with(family, {{"norm_topk_prob", false}}, 1).routing)
        << family;
  }
  for (const char* family : {"dots1", "glm4_moe", "deepseek_v3", "solar_open", "exaone_moe", "nemotron_h", "lfm2_moe",
                             "deepseek_v2", "longcat_flash"})
    EXPECT_EQ(with(family, {{"routed_scaling_factor", 3.25}}, 1).routing.routed_scaling_factor, 3.25) << family;
  EXPECT_EQ(with("afmoe", {{"route_scale", 3.25}}).routing.routed_scaling_factor, 3.25);
  nlohmann::json dbrx = config_of("dbrx");
  dbrx["ffn_config"]["moe_normalize_expert_weights"] = nullptr;
  EXPECT_EQ(rule(dbrx).routing.renormalize, Renormalize::none);
}

TEST(Families, ActivationsAndTheirConstants) {
  EXPECT_EQ(with("mixtral", {{"hidden_act", "gelu"}}).activation, Activation::gelu);
  EXPECT_EQ(with("mixtral", {{"hidden_act", "gelu_pytorch_tanh"}}).activation, Activation::gelu_tanh);
  EXPECT_EQ(rule(config_of("dbrx")).activation, Activation::gelu);
  EXPECT_EQ(rule(config_of("nemotron_h")).activation, Activation::relu2_no_mul);
  const MoeConfig m = rule(config_of("gpt_oss"));
  EXPECT_EQ(m.activation, Activation::swigluoai);
  EXPECT_EQ(m.w13_layout, W13Layout::interleaved);
  EXPECT_TRUE(m.has_w13_bias && m.has_w2_bias);
  EXPECT_EQ(*m.activation_params.limit, 7.0);
  EXPECT_EQ(*with("gpt_oss", {{"swiglu_limit", 5.5}}).activation_params.limit, 5.5);
}

TEST(Families, OlderKeysAreTolerated) {
  nlohmann::json json = config_of("qwen3_moe");
  json["num_experts"] = json["num_local_experts"];
  json.erase("num_local_experts");
  EXPECT_EQ(rule(json).num_experts, 16);
  json["num_local_experts"] = 15;
  expect_error(ErrorKind::bad_file, {"config.json", "\"num_local_experts\"", "given 15", "expected 16"},
               [&] { rule(json); });
  json["num_local_experts"] = nullptr;
  EXPECT_EQ(rule(json).num_experts, 16);
}

TEST(Families, ATextModelInsideAnotherIsRead) {
  nlohmann::json outer{{"model_type", "llama4"}, {"text_config", config_of("llama4")}, {"vision_config", {}}};
  EXPECT_EQ(rule(outer).num_experts, 8);
  outer["text_config"].erase("model_type");
  EXPECT_EQ(rule(outer).num_experts, 8);
  outer["quantization_config"] = {{"quant_method", "fp8"}};
  const ModelConfig config(outer.dump(), "config.json");
  EXPECT_EQ(config.section("quantization_config").text("quant_method", ""), "fp8");
}

TEST(Families, LayersWithBlocksFollowEachFamilysOwnRule) {
  EXPECT_EQ(layers("deepseek_v3", {{"num_hidden_layers", 5}, {"first_k_dense_replace", 2}}),
            (Layers{false, false, true, true, true}));
  EXPECT_EQ(layers("deepseek_v3", {{"num_hidden_layers", 5}, {"first_k_dense_replace", 1}, {"moe_layer_freq", 2}}),
            (Layers{false, false, true, false, true}));
  EXPECT_EQ(layers("qwen3_moe", {{"num_hidden_layers", 5}, {"decoder_sparse_step", 2}, {"mlp_only_layers", {3}}}),
            (Layers{false, true, false, false, false}));
  EXPECT_EQ(layers("ernie4_5_moe", {{"num_hidden_layers", 6},
                                    {"moe_layer_start_index", 1},
                                    {"moe_layer_end_index", 4},
                                    {"moe_layer_interval", 2}}),
            (Layers{false, true, false, true, false, false}));
  EXPECT_EQ(
      layers("ernie4_5_moe", {{"num_hidden_layers", 3}, {"moe_layer_start_index", 1}, {"moe_layer_end_index", -1}}),
      (Layers{false, true, true}));
  EXPECT_EQ(layers("jamba", {{"num_hidden_layers", 4}, {"expert_layer_period", 2}, {"expert_layer_offset", 1}}),
            (Layers{false, true, false, true}));
  EXPECT_EQ(layers("llama4", {{"num_hidden_layers", 4}, {"moe_layers", {1, 3}}}), (Layers{false, true, false, true}));
  EXPECT_EQ(layers("llama4", {{"num_hidden_layers", 3}, {"moe_layers", nullptr}, {"interleave_moe_layer_step", 3}}),
            (Layers{false, false, true}));
  EXPECT_EQ(layers("lfm2_moe", {{"num_hidden_layers", 3}, {"num_dense_layers", 2}}), (Layers{false, false, true}));
  EXPECT_EQ(layers("exaone_moe", {{"mlp_layer_types", {"dense", "sparse"}}}), (Layers{false, true}));
  EXPECT_EQ(layers("nemotron_h", {{"layers_block_type", {"mamba", "moe", "attention"}}}), (Layers{false, true, false}));
  EXPECT_EQ(layers("nemotron_h", {{"layers_block_type", nullptr}, {"hybrid_override_pattern", "ME*E-"}}),
            (Layers{false, true, false, true, false}));
  EXPECT_EQ(layers("longcat_flash", {{"num_layers", 3}}).size(), 3U);
}

struct Refused {
  const char* family;
  const char* key;
  nlohmann::json value;
  std::string says = key;  ///< What the message names: the key, or MoeConfig's field for what validate() checks.
};

class RefusedConfig : public ::testing::TestWithParam<Refused> {};

TEST_P(RefusedConfig, IsNamed) {
  const auto& [family, key, value, says] = GetParam();
  expect_error(ErrorKind::bad_file, {"config.json", says}, [&] { with(family, {{key, value}}, 1); });
}

INSTANTIATE_TEST_SUITE_P(
    Keys, RefusedConfig,
    ::testing::Values(
        Refused{"mixtral", "hidden_act", "relu"}, Refused{"mixtral", "hidden_size", "64"},
        Refused{"mixtral", "num_experts_per_tok", 9, "top_k: given 9"}, Refused{"mixtral", "intermediate_size", -3},
        Refused{"mixtral", "intermediate_size", 1.5}, Refused{"mixtral", "swiglu_limit", 7.0},
        Refused{"minimax", "shared_intermediate_size", 64}, Refused{"deepseek_v2", "norm_topk_prob", true},
        Refused{"deepseek_v2", "topk_method", "noaux_tc"}, Refused{"deepseek_v2", "scoring_func", "sigmoid"},
        Refused{"deepseek_v2", "mlp_bias", true}, Refused{"deepseek_v2", "n_group", 3, "num_expert_group: given 3"},
        Refused{"deepseek_v2", "topk_group", 5}, Refused{"deepseek_v3", "scoring_func", "softmax"},
        Refused{"deepseek_v3", "topk_method", "greedy"}, Refused{"deepseek_v3", "n_group", 16},
        Refused{"deepseek_v3", "n_group", 3, "num_expert_group: given 3"},
        Refused{"deepseek_v3", "n_shared_experts", -1}, Refused{"llama4", "num_experts_per_tok", 2},
        Refused{"phimoe", "num_experts_per_tok", 3}, Refused{"longcat_flash", "zero_expert_type", "copy"},
        Refused{"longcat_flash", "router_bias", true}, Refused{"longcat_flash", "norm_topk_prob", true},
        Refused{"longcat_flash", "zero_expert_num", -1}, Refused{"nemotron_h", "mlp_bias", true},
        Refused{"nemotron_h", "mlp_hidden_act", "tanh"}, Refused{"afmoe", "score_func", "softmax"},
        Refused{"afmoe", "route_norm", false}, Refused{"afmoe", "n_group", 2},
        Refused{"ernie4_5_moe", "use_bias", true}, Refused{"ernie4_5_moe", "moe_num_experts", {{"x", 1}}},
        Refused{"hunyuan_v1_moe", "norm_topk_prob", false}, Refused{"hunyuan_v1_moe", "num_shared_expert", {1, 2}},
        Refused{"hunyuan_v1_moe", "moe_intermediate_size", {56, 57}}, Refused{"hunyuan_v1_moe", "moe_topk", {4}},
        Refused{"minimax_m2", "scoring_func", "softmax"}, Refused{"minimax_m2", "use_routing_bias", false},
        Refused{"gpt_oss", "hidden_act", "gelu"}, Refused{"lfm2_moe", "hidden_act", "gelu"},
        Refused{"qwen2_moe", "norm_topk_prob", 1}, Refused{"dbrx", "ffn_config", 3}),
    [](const auto& test) {
      return std::string(test.param.family) + "_" + test.param.key + "_" + std::to_string(test.index);
    });

TEST(RefusedConfigs, NormsOfHigherOrder) {
  nlohmann::json dbrx = config_of("dbrx");
  dbrx["ffn_config"]["moe_normalize_expert_weights"] = 2.0;
  expect_error(ErrorKind::bad_file, {"ffn_config.moe_normalize_expert_weights", "given 2.0"}, [&] { rule(dbrx); });
  dbrx = config_of("dbrx");
  dbrx["ffn_config"]["ffn_act_fn"]["name"] = "mish";
  expect_error(ErrorKind::bad_file, {"ffn_config.ffn_act_fn.name", "\"mish\""}, [&] { rule(dbrx); });
}

TEST(RefusedConfigs, UnknownAndMissingTypes) {
  expect_error(ErrorKind::bad_file, {"unknown model_type \"gemma\"", "mixtral", "afmoe"}, [] {
    rule({{"model_type", "gemma"}});
  });
  expect_error(ErrorKind::bad_file, {"no \"model_type\""}, [] { rule(nlohmann::json::object()); });
  expect_error(ErrorKind::bad_file, {"an object"}, [] { ModelConfig("[1]", "config.json"); });
  expect_error(ErrorKind::bad_file, {"\"num_experts\" is missing"}, [] { rule({{"model_type", "mixtral"}}); });
}

TEST(RefusedConfigs, LayerCountsThatWouldTakeAllMemory) {
  for (const std::int64_t count : {std::int64_t{-1}, std::int64_t{10'001}, std::int64_t{1} << 62})
    expect_error(ErrorKind::bad_file, {"num_hidden_layers"}, [&] {
      layers("mixtral", {{"num_hidden_layers", count}});
    });
  expect_error(ErrorKind::bad_file, {"decoder_sparse_step"}, [] { layers("qwen3_moe", {{"decoder_sparse_step", 0}}); });
}

TEST(ModelConfigText, PythonsNonFiniteNumbersAreTolerated) {
  EXPECT_NO_THROW(ModelConfig(R"({"model_type":"nemotron_h","time_step_limit":[0.0, Infinity]})", "config.json"));
}

}  // namespace
}  // namespace conclave::test
