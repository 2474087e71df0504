// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One function for each object of the grammar; an object that still has fields after reading is refused.
#include "io/case_json.hpp"

#include <set>

#include "base/error.hpp"
#include "io/json_text.hpp"

namespace conclave {
namespace {

using nlohmann::json;

/// The fields of one object, each taken once.
class Fields {
 public:
  Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) fail(ErrorKind::bad_file, "{}: given {}, expected an object", where_, shown(object));
  }

  /// Null where the field is absent.
  const json* take(const char* key) {
    known_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }
  std::string where(const char* key) const { return fmt::format("{}: \"{}\"", where_, key); }

  void read(const char* key, std::int64_t& out) {
    if (const json* value = take(key)) out = json_integer(*value, where(key));
  }
  void read(const char* key, std::uint64_t& out) {
    if (const json* value = take(key)) out = json_unsigned(*value, where(key));
  }
  void read(const char* key, double& out) {
    if (const json* value = take(key)) out = json_number(*value, where(key));
  }
  void read(const char* key, std::optional<double>& out) {
    if (const json* value = take(key)) out = json_number(*value, where(key));
  }
  void read(const char* key, bool& out) {
    if (const json* value = take(key)) out = json_boolean(*value, where(key));
  }
  void read(const char* key, std::string& out) {
    if (const json* value = take(key)) out = json_string(*value, where(key));
  }
  /// A name, looked up by `from_name`, whose own message lists the legal ones.
  template <class Enum>
  void read(const char* key, Enum& out, Enum (*from_name)(std::string_view)) {
    const json* value = take(key);
    if (value == nullptr) return;
    try {
      out = from_name(json_string(*value, where(key)));
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::bad_file) throw;
      fail(ErrorKind::bad_file, "{}: {}", where(key), error.what());
    }
  }
  void require(const char* key) {
    if (take(key) == nullptr) fail(ErrorKind::bad_file, "{} is missing", where(key));
  }
  void finish() const {
    std::string list;
    for (const std::string& key : known_) list += (list.empty() ? "" : ", ") + key;
    for (const auto& [key, _] : object_.items())
      if (!known_.contains(key))
        fail(ErrorKind::bad_file, "{}: unknown field {}, expected one of {}", where_, in_quotes(key), list);
  }

 private:
  const json& object_;
  std::string where_;
  std::set<std::string> known_;
};

DType dtype_named(std::string_view name) {
  const std::optional<DType> dtype = dtype_from_name(name);
  require(dtype && is_compute_dtype(*dtype), "given {}, expected f32, bf16 or f16", in_quotes(name));
  return *dtype;
}

void read_activation_params(const json& object, const std::string& where, ActivationParams& out) {
  Fields f(object, where);
  f.read("alpha", out.alpha);
  f.read("beta", out.beta);
  f.read("limit", out.limit);
  f.read("linear_beta", out.linear_beta);
  f.finish();
}

void read_routing(const json& object, const std::string& where, RoutingConfig& out, bool& has_bias_given) {
  Fields f(object, where);
  f.require("method");
  RoutingMethod method = RoutingMethod::default_;
  f.read("method", method, routing_method_from_name);
  if (method == RoutingMethod::custom)
    fail(ErrorKind::bad_file, "{}: method custom, expected a method that a file can hold", where);
  out = routing_preset(method);
  has_bias_given = f.take("has_bias") != nullptr;
  f.read("scoring", out.scoring, scoring_from_name);
  f.read("score_after_topk", out.score_after_topk);
  f.read("has_bias", out.has_bias);
  f.read("num_expert_group", out.num_expert_group);
  f.read("topk_group", out.topk_group);
  f.read("group_score", out.group_score, group_score_from_name);
  f.read("renormalize", out.renormalize, renormalize_from_name);
  f.read("epsilon", out.epsilon);
  f.read("routed_scaling_factor", out.routed_scaling_factor);
  f.read("num_fused_shared_experts", out.num_fused_shared_experts);
  f.read("fused_shared_weight", out.fused_shared_weight);
  f.read("sparsemixer_jitter", out.sparsemixer_jitter);
  f.read("simulated", out.simulated, simulated_from_name);
  f.read("zipf_exponent", out.zipf_exponent);
  f.read("seed", out.seed);
  f.finish();
}

void read_quant(const json& object, const std::string& where, QuantConfig& out) {
  Fields f(object, where);
  f.read("weights", out.weights, quant_key_from_name);
  f.read("activations", out.activations, quant_key_from_name);
  f.finish();
}

CaseTolerance read_tolerance(const json& object, const std::string& where) {
  Fields f(object, where);
  CaseTolerance out;
  f.read("atol", out.atol);
  f.read("rtol", out.rtol);
  f.finish();
  if (out.atol < 0 || out.rtol < 0)
    fail(ErrorKind::bad_file, "{}: atol {}, rtol {}, expected 0 or more", where, out.atol, out.rtol);
  return out;
}

json activation_params_json(const ActivationParams& p) {
  json out = json::object();
  if (p.alpha) out["alpha"] = *p.alpha;
  if (p.beta) out["beta"] = *p.beta;
  if (p.limit) out["limit"] = *p.limit;
  if (p.linear_beta) out["linear_beta"] = *p.linear_beta;
  return out;
}

json routing_json(const RoutingConfig& r) {
  const RoutingConfig preset = routing_preset(r.method);
  json out{{"method", name_of(r.method)}};
  const auto put = [&](const char* key, const auto& value, const auto& usual) {
    if (value != usual) out[key] = value;
  };
  put("scoring", name_of(r.scoring), name_of(preset.scoring));
  put("score_after_topk", r.score_after_topk, preset.score_after_topk);
  put("has_bias", r.has_bias, preset.has_bias);
  put("num_expert_group", r.num_expert_group, preset.num_expert_group);
  put("topk_group", r.topk_group, preset.topk_group);
  put("group_score", name_of(r.group_score), name_of(preset.group_score));
  put("renormalize", name_of(r.renormalize), name_of(preset.renormalize));
  put("epsilon", r.epsilon, preset.epsilon);
  put("routed_scaling_factor", r.routed_scaling_factor, preset.routed_scaling_factor);
  put("num_fused_shared_experts", r.num_fused_shared_experts, preset.num_fused_shared_experts);
  put("fused_shared_weight", r.fused_shared_weight, preset.fused_shared_weight);
  put("sparsemixer_jitter", r.sparsemixer_jitter, preset.sparsemixer_jitter);
  put("simulated", name_of(r.simulated), name_of(preset.simulated));
  put("zipf_exponent", r.zipf_exponent, preset.zipf_exponent);
  put("seed", r.seed, preset.seed);
  return out;
}

}  // namespace

void read_problem(const std::string& text, const std::string& where, Case& out, bool& has_bias_given) {
  const json document = parse_json(text, where);
  Fields f(document, where);
  MoeConfig& moe = out.moe;
  for (const char* key : {"num_experts", "top_k", "hidden_size", "intermediate_size", "dtype"}) f.require(key);
  f.read("num_experts", moe.num_experts);
  f.read("top_k", moe.top_k);
  f.read("hidden_size", moe.hidden_size);
  f.read("intermediate_size", moe.intermediate_size);
  f.read("latent_size", moe.latent_size);
  f.read("dtype", moe.dtype, dtype_named);
  f.read("activation", moe.activation, activation_from_name);
  if (const json* value = f.take("activation_params"))
    read_activation_params(*value, f.where("activation_params"), moe.activation_params);
  f.read("w13_layout", moe.w13_layout, w13_layout_from_name);
  has_bias_given = false;
  if (const json* value = f.take("routing")) read_routing(*value, f.where("routing"), moe.routing, has_bias_given);
  f.read("apply_router_weight_on_input", moe.apply_router_weight_on_input);
  f.read("routed_scale_on_output", moe.routed_scale_on_output);
  f.read("zero_experts", moe.zero_experts);
  f.read("in_place", moe.in_place);
  f.read("checked", moe.checked);
  if (const json* value = f.take("quant")) read_quant(*value, f.where("quant"), out.quant);
  if (const json* value = f.take("tolerance")) out.tolerance = read_tolerance(*value, f.where("tolerance"));
  f.read("expect_error", out.expect_error);
  f.read("note", out.note);
  f.finish();
}

std::string write_problem(const Case& value) {
  const MoeConfig& moe = value.moe;
  json out{{"num_experts", moe.num_experts},        {"top_k", moe.top_k},
           {"hidden_size", moe.hidden_size},        {"intermediate_size", moe.intermediate_size},
           {"dtype", name_of(moe.dtype)},           {"activation", name_of(moe.activation)},
           {"w13_layout", name_of(moe.w13_layout)}, {"routing", routing_json(moe.routing)}};
  if (moe.activation_params != ActivationParams{})
    out["activation_params"] = activation_params_json(moe.activation_params);
  if (moe.latent_size > 0) out["latent_size"] = moe.latent_size;
  if (moe.zero_experts > 0) out["zero_experts"] = moe.zero_experts;
  if (moe.apply_router_weight_on_input) out["apply_router_weight_on_input"] = true;
  if (moe.routed_scale_on_output) out["routed_scale_on_output"] = true;
  if (moe.in_place) out["in_place"] = true;
  if (moe.checked) out["checked"] = true;
  if (value.quant != QuantConfig{})
    out["quant"] = {{"weights", name_of(value.quant.weights)}, {"activations", name_of(value.quant.activations)}};
  if (value.tolerance) out["tolerance"] = {{"atol", value.tolerance->atol}, {"rtol", value.tolerance->rtol}};
  if (!value.expect_error.empty()) out["expect_error"] = value.expect_error;
  if (!value.note.empty()) out["note"] = value.note;
  try {
    return out.dump();
  } catch (const json::exception&) {
    fail(ErrorKind::invalid_argument, "case {}: note or expect_error is not UTF-8", in_quotes(value.name));
  }
}

}  // namespace conclave
