// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Case files: everything that they can hold survives a round trip, and everything else is refused by name.
#include "conclave/case_file.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "conclave/safetensors.hpp"
#include "io/files.hpp"

namespace conclave::test {
namespace {

using nlohmann::json;

/// Tensors and problem of a case, to be changed before they become a file. Sizes all differ.
struct Draft {
  static constexpr std::int64_t M = 4, E = 5, K = 3, H = 6, I = 7;

  json problem{{"num_experts", E}, {"top_k", K}, {"hidden_size", H}, {"intermediate_size", I}, {"dtype", "f32"}};
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata{{"format", "conclave-case"}, {"version", "1"}};

  Draft() {
    add("hidden_states", DType::f32, {M, H});
    add("router_logits", DType::f32, {M, E});
    add("w13", DType::f32, {E, 2 * I, H});
    add("w2", DType::f32, {E, H, I});
  }
  Tensor& add(const std::string& name, DType dtype, std::initializer_list<std::int64_t> shape) {
    Tensor t(dtype, shape);
    auto* bytes = t.as<unsigned char>();
    std::iota(bytes, bytes + t.view().bytes(), static_cast<unsigned char>(name.size()));
    return tensors[name] = t;
  }
  std::string write(const std::string& path) const {
    std::vector<NamedTensor> list;
    for (const auto& [name, tensor] : tensors) list.push_back({name, tensor});
    std::map<std::string, std::string> texts = metadata;
    if (!texts.contains("problem")) texts["problem"] = problem.dump();
    write_safetensors(path, list, texts);
    return path;
  }
  Case read() const {
    const TempFolder folder;
    return read_case(write(folder.path("draft.safetensors")));
  }
  void refused(std::initializer_list<std::string> words) const {
    expect_error(ErrorKind::bad_file, words, [&] { read(); });
  }
};

TEST(CaseFile, DefaultsFollowFromTheTensors) {
  const Case c = Draft().read();
  EXPECT_EQ(c.name, "draft");
  EXPECT_EQ(c.moe.num_experts, 5);
  EXPECT_EQ(c.moe.top_k, 3);
  EXPECT_EQ(c.moe.dtype, DType::f32);
  EXPECT_EQ(c.moe.weight_dtype, DType::f32);
  EXPECT_EQ(c.moe.max_num_tokens, 4);
  EXPECT_EQ(c.moe.activation, Activation::silu);
  EXPECT_EQ(c.moe.routing, routing_preset(RoutingMethod::default_));
  EXPECT_FALSE(c.moe.has_w13_bias || c.moe.has_w2_bias || c.tolerance || c.weights.expert_map);
  EXPECT_EQ(c.moe.shared, SharedExpertConfig{});
}

Draft everything() {
  Draft d;
  d.problem.update({{"dtype", "bf16"},
                    {"num_experts", 7},
                    {"zero_experts", 2},
                    {"latent_size", 3},
                    {"activation", "swigluoai"},
                    {"activation_params", {{"alpha", 1.5}, {"limit", 6.25}}},
                    {"w13_layout", "interleaved"},
                    {"routed_scale_on_output", true},
                    {"checked", true},
                    {"tolerance", {{"atol", 0.5}, {"rtol", 0.25}}},
                    {"note", "caf\u00e9 \"quoted\""}});
  d.problem["routing"] = {{"method", "deepseek_v3"},
                          {"num_expert_group", 7},
                          {"topk_group", 4},
                          {"group_score", "max"},
                          {"scoring", "softmax"},
                          {"renormalize", "max_epsilon"},
                          {"epsilon", 1e-3},
                          {"routed_scaling_factor", 2.5},
                          {"score_after_topk", false},
                          {"sparsemixer_jitter", 0.25},
                          {"simulated", "zipf"},
                          {"zipf_exponent", 1.25},
                          {"seed", 18446744073709551615U},
                          {"fused_shared_weight", 0.75}};
  d.add("hidden_states", DType::bf16, {4, 6});
  d.add("router_logits", DType::f16, {4, 7});
  d.add("w13", DType::f16, {4, 14, 3});
  d.add("w2", DType::f16, {4, 3, 7});
  d.add("w13_bias", DType::bf16, {4, 14});
  d.add("w2_bias", DType::f32, {4, 3});
  d.add("latent_in", DType::f16, {3, 6});
  d.add("latent_out", DType::f16, {6, 3});
  d.add("shared_w13", DType::f16, {22, 6});
  d.add("shared_w2", DType::f16, {6, 11});
  d.add("shared_gate", DType::f16, {6});
  d.add("expected", DType::f32, {4, 6});
  d.add("expected_topk_ids", DType::i32, {4, 3});
  d.add("expected_topk_weights", DType::f32, {4, 3});
  d.add("expected_counts", DType::i64, {4});
  float* bias = d.add("e_score_correction_bias", DType::f32, {7}).as<float>();
  for (int e = 0; e < 7; ++e) bias[e] = 0.5F * static_cast<float>(e);
  auto* map = d.add("expert_map", DType::i64, {5}).as<std::int64_t>();
  for (int e = 0; e < 5; ++e) map[e] = e == 2 ? -1 : e < 2 ? e : e - 1;
  return d;
}

TEST(CaseFile, ReadsEveryFieldAndTensor) {
  const Case c = everything().read();
  EXPECT_EQ(c.moe.zero_experts, 2);
  EXPECT_EQ(c.moe.latent_size, 3);
  EXPECT_EQ(c.moe.activation, Activation::swigluoai);
  EXPECT_EQ(*c.moe.activation_params.limit, 6.25);
  EXPECT_EQ(c.moe.w13_layout, W13Layout::interleaved);
  EXPECT_TRUE(c.moe.routed_scale_on_output && c.moe.checked && c.moe.has_w13_bias && c.moe.has_w2_bias);
  EXPECT_EQ(c.moe.router_logits_dtype, DType::f16);
  EXPECT_EQ(c.moe.weight_dtype, DType::f16);
  EXPECT_EQ(c.moe.routing.num_expert_group, 7);
  EXPECT_EQ(c.moe.routing.group_score, GroupScore::max);
  EXPECT_EQ(c.moe.routing.renormalize, Renormalize::max_epsilon);
  EXPECT_EQ(c.moe.routing.seed, ~std::uint64_t{0});
  EXPECT_TRUE(c.moe.routing.has_bias);
  EXPECT_EQ(c.moe.shared, (SharedExpertConfig{11, true}));
  EXPECT_EQ(c.tolerance->rtol, 0.25);
  EXPECT_EQ(c.note, "caf\u00e9 \"quoted\"");
  EXPECT_EQ(c.weights.expert_map->as<std::int32_t>()[2], -1);
  EXPECT_EQ(c.weights.expert_map->as<std::int32_t>()[4], 3);
  EXPECT_EQ(c.weights.e_score_correction_bias->as<float>()[6], 3.0F);
}

TEST(CaseFile, RoundTripsEverything) {
  const TempFolder folder;
  const Draft d = everything();
  const Case first = d.read();
  write_case(folder.path("again.safetensors"), first);
  const Case second = read_case(folder.path("again.safetensors"));
  EXPECT_EQ(first.moe, second.moe);
  EXPECT_EQ(first.quant, second.quant);
  EXPECT_EQ(first.note, second.note);
  EXPECT_EQ(first.tolerance->atol, second.tolerance->atol);
  const SafetensorsFile file(folder.path("again.safetensors"));
  EXPECT_EQ(file.tensors().size(), d.tensors.size());
  for (const auto& [name, tensor] : d.tensors) {
    const ConstTensorView& found = file.get(name);
    if (name == "expert_map") continue;  // Narrowed to i32.
    EXPECT_EQ(to_string(found), to_string(tensor.view())) << name;
    EXPECT_EQ(std::memcmp(found.data, tensor.view().data, static_cast<std::size_t>(found.bytes())), 0) << name;
  }
}

TEST(CaseFile, EveryNonDefaultRoutingFieldIsWritten) {
  // A field that write_case forgets comes back as its default, and then the configurations differ.
  const TempFolder folder;
  Draft d;
  d.add("e_score_correction_bias", DType::f32, {5});
  Case c = d.read();
  for (const RoutingMethod method : all_routing_methods()) {
    if (method == RoutingMethod::custom) continue;
    for (const bool changed : {false, true}) {
      RoutingConfig r = routing_preset(method);
      r.has_bias = true;
      if (changed) {
        r.score_after_topk = !r.score_after_topk;
        r.scoring = r.scoring == Scoring::logits ? Scoring::sigmoid : Scoring::logits;
        r.num_expert_group = 5;
        r.topk_group = 4;
        r.group_score = r.group_score == GroupScore::max ? GroupScore::top2_sum : GroupScore::max;
        r.renormalize = r.renormalize == Renormalize::none ? Renormalize::max_epsilon : Renormalize::none;
        r.epsilon = 0.125;
        r.routed_scaling_factor = 3;
        r.num_fused_shared_experts = 0;
        r.fused_shared_weight = 0.5;
        r.sparsemixer_jitter = 0.5;
        r.simulated = SimulatedRouting::normal_routing;
        r.zipf_exponent = 2;
        r.seed = 3;
      }
      c.moe.routing = r;
      write_case(folder.path("f"), c);
      EXPECT_EQ(read_case(folder.path("f")).moe.routing, r) << name_of(method);
    }
  }
}

TEST(CaseFile, TakesIdsInsteadOfLogits) {
  Draft d;
  d.tensors.erase("router_logits");
  d.refused({"router_logits", "given nothing", "either router_logits, or topk_ids and topk_weights"});
  d.add("topk_ids", DType::i64, {4, 3});
  d.refused({"topk_weights", "both"});
  d.add("topk_weights", DType::bf16, {4, 3});
  EXPECT_TRUE(d.read().topk_ids);
  d.add("router_logits", DType::f32, {4, 5});
  d.refused({"either router_logits"});
}

TEST(CaseFile, ACorrectionBiasIsUsedWhereItIsGiven) {
  Draft d;
  EXPECT_FALSE(d.read().moe.routing.has_bias);
  d.add("e_score_correction_bias", DType::f32, {5});
  EXPECT_TRUE(d.read().moe.routing.has_bias);
  d.problem["routing"] = {{"method", "default"}, {"has_bias", false}};
  d.refused({"e_score_correction_bias", "none"});
  d.tensors.erase("e_score_correction_bias");
  d.problem["routing"] = {{"method", "deepseek_v3"}};
  EXPECT_FALSE(d.read().moe.routing.has_bias);
  d.problem["routing"]["has_bias"] = true;
  d.refused({"e_score_correction_bias", "given nothing"});
}

TEST(CaseFile, RefusesUnknownFieldsEverywhere) {
  for (const char* object : {"", "routing", "activation_params", "quant", "tolerance"}) {
    Draft d;
    d.problem["routing"] = {{"method", "default"}};
    json& target = *object == '\0' ? d.problem : d.problem[object];
    target["surprise"] = 1;
    d.refused({"draft.safetensors: problem", "unknown field \"surprise\"", object});
  }
}

TEST(CaseFile, RefusesWrongFields) {
  const std::vector<std::tuple<const char*, json, std::string>> rows = {
      {"num_experts", "5", "given \"5\", expected an integer"},
      {"num_experts", 0, "\"num_experts\": given 0"},
      {"num_experts", std::int64_t{1} << 41, "\"num_experts\": given 2199023255552"},
      {"top_k", 6, "top_k: given 6"},
      {"hidden_size", -1, "\"hidden_size\": given -1"},
      {"dtype", "f64", "given \"f64\""},
      {"dtype", "fp8_e4m3", "f32, bf16 or f16"},
      {"dtype", 3, "given 3, expected a string"},
      {"activation", "tanh", "tanh"},
      {"w13_layout", "up", "up"},
      {"activation_params", 3, "given 3, expected an object"},
      {"routing", json::object(), "\"method\" is missing"},
      {"routing", {{"method", 7}}, "given 7, expected a string"},
      {"routing", {{"method", "best"}}, "best"},
      {"routing", {{"method", "custom"}}, "custom"},
      {"routing", {{"method", "default"}, {"hash_table", true}}, "unknown field \"hash_table\""},
      {"routing", {{"method", "default"}, {"seed", -1}}, "given -1"},
      {"checked", 1, "given 1, expected true or false"},
      {"tolerance", {{"atol", -1}}, "atol -1"},
      {"tolerance", {{"rtol", "x"}}, "\"rtol\""},
      {"quant", {{"weights", "fp9"}}, "fp9"},
      {"zero_experts", 5, "zero_experts"},
      {"note", 1, "\"note\""}};
  for (const auto& [key, value, words] : rows) {
    Draft d;
    d.problem[key] = value;
    d.refused({"draft.safetensors: problem", words});
  }
  for (const char* key : {"num_experts", "top_k", "hidden_size", "intermediate_size", "dtype"}) {
    Draft d;
    d.problem.erase(key);
    d.refused({key, "is missing"});
  }
}

TEST(CaseFile, RefusesAnotherFrame) {
  for (const char* key : {"format", "version"}) {
    Draft d;
    d.metadata[key] = "2\n";
    d.refused({key, "given \"2\\x0a\""});
    d.metadata.erase(key);
    d.refused({"no \"" + std::string(key) + "\""});
  }
  Draft d;
  d.metadata["author"] = "x";
  d.refused({"unknown metadata \"author\""});
  d = Draft();
  d.metadata["problem"] = "{";
  d.refused({"problem: not JSON"});
  d.metadata["problem"] = R"({"top_k":1,"top_k":2})";
  d.refused({"\"top_k\" occurs twice"});
}

TEST(CaseFile, RefusesUnknownTensors) {
  Draft d;
  d.add("w31", DType::f32, {1});
  d.refused({"unknown tensor \"w31\""});
  // Known, but of a quantisation that the problem does not name.
  d = Draft();
  d.add("w13_scale", DType::f32, {5});
  d.refused({"unknown tensor \"w13_scale\""});
}

TEST(CaseFile, RefusesEveryWrongShapeAndDtype) {
  const Draft whole = everything();
  for (const auto& [name, tensor] : whole.tensors) {
    const ConstTensorView view = tensor;
    Draft d = whole;
    d.tensors.erase(name);
    std::vector<std::int64_t> dims(view.shape.begin(), view.shape.begin() + view.rank);
    dims.back() += 1;
    d.tensors[name] = Tensor(view.dtype, dims);
    // The one tensor that defines a size has no wrong shape of its own.
    const std::string culprit = name == "shared_w2" ? "shared_w13" : name;
    d.refused({"tensor \"" + culprit + "\": given"});
    dims.back() -= 1;
    d.tensors[name] = Tensor(DType::i16, dims);
    d.refused({"tensor \"", "i16["});
    dims.push_back(1);
    d.tensors[name] = Tensor(view.dtype, dims);
    d.refused({"tensor \"" + name + "\": given"});
  }
  for (const char* name : {"hidden_states", "w13", "w2", "shared_w13", "shared_w2", "latent_in", "latent_out"}) {
    Draft d = whole;
    d.tensors.erase(name);
    d.refused({"tensor \"" + std::string(name) + "\": given nothing"});
  }
}

TEST(CaseFile, ChecksTheExpertMap) {
  Draft d;
  d.add("w13", DType::f32, {4, 14, 6});
  d.add("w2", DType::f32, {4, 6, 7});
  d.refused({"w13", "5 experts, or an expert_map"});
  auto* map = d.add("expert_map", DType::i32, {5}).as<std::int32_t>();
  for (int e = 0; e < 5; ++e) map[e] = e - 1;
  EXPECT_EQ(d.read().weights.experts.num_local_experts(), 4);
  map[3] = 4;
  d.refused({"expert_map", "element 3 is 4", "-1 to 3"});
  map[3] = -2;
  d.refused({"element 3 is -2"});
}

TEST(CaseFile, AMapMayListZeroExperts) {
  Draft d = everything();
  auto* map = d.add("expert_map", DType::i32, {7}).as<std::int32_t>();
  for (int e = 0; e < 7; ++e) map[e] = e < 4 ? e : -1;
  EXPECT_EQ(d.read().weights.expert_map->size(0), 5);
}

TEST(CaseFile, HoldsQuantisedWeights) {
  Draft d;
  d.problem["quant"] = {{"weights", "fp8_block128"}, {"activations", "fp8_block128"}};
  d.add("w13", DType::u8, {5, 14, 6});
  d.add("w2", DType::fp8_e4m3, {5, 6, 7});
  d.add("w13_scale", DType::f32, {5, 1, 1});
  d.add("w2_scale", DType::f32, {5});
  d.add("a1_scale", DType::f32, {1});
  d.add("a2_scale", DType::f32, {5});
  const Case c = d.read();
  EXPECT_EQ(c.quant.weights, QuantKey::fp8_block128);
  EXPECT_TRUE(c.weights.experts.w13_scale && c.weights.experts.a2_scale);
  const TempFolder folder;
  write_case(folder.path("f"), c);
  EXPECT_EQ(read_case(folder.path("f")).quant, c.quant);

  d.problem["quant"] = {{"weights", "int4_group32_zp"}};
  d.tensors.erase("a1_scale");
  d.tensors.erase("a2_scale");
  d.add("w13", DType::u8, {5, 14, 3});
  d.add("w2", DType::u8, {5, 6, 4});
  d.add("w13_scale", DType::f32, {5, 14});
  d.add("w2_scale", DType::f32, {5, 6, 1});
  d.add("w13_zero_point", DType::u8, {5, 14, 1});
  EXPECT_TRUE(d.read().weights.experts.w13_zero_point);
  d.add("w2_scale", DType::f32, {5, 6, 2});
  d.refused({"w2_scale", "given f32[5, 6, 2]", "f32 [5, 6, 1]"});
}

TEST(CaseFile, GateAndUpMayHaveScalesOfTheirOwn) {
  Draft d;
  d.problem["quant"] = {{"weights", "fp8_tensor"}};
  d.add("w13", DType::u8, {5, 14, 6});
  d.add("w2", DType::u8, {5, 6, 7});
  d.add("w13_scale", DType::f32, {5, 2});
  d.add("w2_scale", DType::f32, {5});
  EXPECT_EQ(d.read().weights.experts.w13_scale->size(1), 2);
  d.add("w2_scale", DType::f32, {5, 2});
  d.refused({"w2_scale", "given f32[5, 2]"});
}

TEST(CaseFile, ACaseThatMustFailMayBeWrong) {
  Draft d;
  d.problem["expect_error"] = "w2";
  d.add("w2", DType::f32, {5, 6, 8});
  EXPECT_EQ(d.read().expect_error, "w2");
  d.problem["top_k"] = 9;
  EXPECT_EQ(d.read().moe.top_k, 9);
  // What the reader itself needs stays checked.
  d.add("w2", DType::f32, {5, 6});
  d.refused({"w2"});
  d.add("w2", DType::i32, {5, 6, 7});
  d.refused({"w2"});
}

TEST(CaseFile, RefusesToWriteWhatItCannotHold) {
  const TempFolder folder;
  Case c = Draft().read();
  c.moe.routing.method = RoutingMethod::custom;
  expect_error(ErrorKind::invalid_argument, {"custom"}, [&] { write_case(folder.path("f"), c); });
  c = Draft().read();
  c.moe.routing.hash_table = true;
  expect_error(ErrorKind::invalid_argument, {"hash-table"}, [&] { write_case(folder.path("f"), c); });
  c = Draft().read();
  c.note = "\xff";
  expect_error(ErrorKind::invalid_argument, {"UTF-8"}, [&] { write_case(folder.path("f"), c); });
  EXPECT_EQ(folder.num_files(), 0U);
}

TEST(CaseFile, SeedsOfTheFuzzTargetGetPastTheReader) {
  for (const auto& seed : std::filesystem::directory_iterator(CONCLAVE_SOURCE_DIR "/tests/fuzz/corpus/case"))
    EXPECT_NO_THROW(read_case(seed.path().string())) << seed.path();
  for (const auto& seed : std::filesystem::directory_iterator(CONCLAVE_SOURCE_DIR "/tests/fuzz/corpus/safetensors"))
    EXPECT_NO_THROW(SafetensorsFile(seed.path().string())) << seed.path();
}

TEST(CaseFile, ParsesFromMemory) {
  const TempFolder folder;
  const std::string bytes = read_file(everything().write(folder.path("f")));
  EXPECT_EQ(parse_case(bytes_of_text(bytes), "some/where.safetensors").name, "where");
}

}  // namespace
}  // namespace conclave::test
