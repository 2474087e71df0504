// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A case file <-> Case: the frame around problem and tensors.
#include "conclave/case_file.hpp"

#include <filesystem>

#include "base/error.hpp"
#include "conclave/safetensors.hpp"
#include "io/case_json.hpp"
#include "io/case_tensors.hpp"
#include "io/json_text.hpp"

namespace conclave {
namespace {

constexpr const char* kFormat = "conclave-case";
constexpr const char* kVersion = "1";

/// What multiplies sizes must not overflow; no machine holds a case of this size.
constexpr std::int64_t kMaxSize = std::int64_t{1} << 40;

const std::string& metadata(const SafetensorsFile& file, const char* key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end())
    fail(ErrorKind::bad_file, "{}: __metadata__ has no \"{}\", expected format, version and problem", file.path(), key);
  return found->second;
}

void check_frame(const SafetensorsFile& file) {
  for (auto [key, expected] : {std::pair{"format", kFormat}, std::pair{"version", kVersion}})
    if (metadata(file, key) != expected)
      fail(ErrorKind::bad_file, "{}: \"{}\": given {}, expected {}", file.path(), key, in_quotes(metadata(file, key)),
           expected);
  for (const auto& [key, _] : file.metadata())
    if (key != "format" && key != "version" && key != "problem")
      fail(ErrorKind::bad_file, "{}: unknown metadata {}, expected format, version and problem", file.path(),
           in_quotes(key));
}

/// Shapes are computed from these before anything else looks at them.
void check_sizes(const MoeConfig& moe, const std::string& where) {
  const auto check = [&](const char* field, std::int64_t value, std::int64_t least) {
    if (value < least || value > kMaxSize)
      fail(ErrorKind::bad_file, "{}: \"{}\": given {}, expected {} to {}", where, field, value, least, kMaxSize);
  };
  check("num_experts", moe.num_experts, 1);
  check("top_k", moe.top_k, 1);
  check("hidden_size", moe.hidden_size, 1);
  check("intermediate_size", moe.intermediate_size, 1);
  check("latent_size", moe.latent_size, 0);
  check("zero_experts", moe.zero_experts, 0);
  check("num_fused_shared_experts", moe.routing.num_fused_shared_experts, 0);
}

/// The rules of every MoeConfig; a case that is expected to fail leaves them to the library.
void check_rules(const Case& value, const std::string& where) {
  if (!value.expect_error.empty()) return;
  try {
    validate(value.moe);
  } catch (const Error& error) {
    fail(ErrorKind::bad_file, "{}: {}", where, error.what());
  }
}

Case from_file(const SafetensorsFile& file) {
  Case out;
  out.name = std::filesystem::path(file.path()).stem().string();
  check_frame(file);
  const std::string where = file.path() + ": problem";
  bool has_bias_given = false;
  read_problem(metadata(file, "problem"), where, out, has_bias_given);
  check_sizes(out.moe, where);
  check_rules(out, where);
  read_case_tensors(file, has_bias_given, out);
  check_rules(out, where);  // Again, with what followed from the tensors.
  return out;
}

void add(std::vector<NamedTensor>& tensors, const char* name, const std::optional<ConstTensorView>& view) {
  if (view) tensors.push_back({name, *view});
}

}  // namespace

Case read_case(const std::string& path) {
  return from_file(SafetensorsFile(path));
}

Case parse_case(std::span<const std::byte> bytes, const std::string& name) {
  return from_file(SafetensorsFile::from_bytes(bytes, name));
}

void write_case(const std::string& path, const Case& value) {
  const LayerWeights& w = value.weights;
  require(!w.custom_routing && value.moe.routing.method != RoutingMethod::custom,
          "{}: custom routing is a function, expected a method that a file can hold", path);
  require(!value.moe.routing.hash_table, "{}: hash-table routing needs token ids, expected topk_ids instead", path);
  std::vector<NamedTensor> tensors{{"hidden_states", value.hidden_states}};
  add(tensors, "router_logits", value.router_logits);
  add(tensors, "topk_ids", value.topk_ids);
  add(tensors, "topk_weights", value.topk_weights);
  tensors.push_back({"w13", w.experts.w13});
  tensors.push_back({"w2", w.experts.w2});
  add(tensors, "w13_bias", w.experts.w13_bias);
  add(tensors, "w2_bias", w.experts.w2_bias);
  add(tensors, "w13_scale", w.experts.w13_scale);
  add(tensors, "w2_scale", w.experts.w2_scale);
  add(tensors, "w13_global_scale", w.experts.w13_global_scale);
  add(tensors, "w2_global_scale", w.experts.w2_global_scale);
  add(tensors, "w13_zero_point", w.experts.w13_zero_point);
  add(tensors, "w2_zero_point", w.experts.w2_zero_point);
  add(tensors, "a1_scale", w.experts.a1_scale);
  add(tensors, "a2_scale", w.experts.a2_scale);
  add(tensors, "e_score_correction_bias", w.e_score_correction_bias);
  add(tensors, "expert_map", w.expert_map);
  add(tensors, "shared_w13", w.shared_w13);
  add(tensors, "shared_w2", w.shared_w2);
  add(tensors, "shared_gate", w.shared_gate);
  add(tensors, "latent_in", w.latent_in);
  add(tensors, "latent_out", w.latent_out);
  add(tensors, "expected", value.expected);
  add(tensors, "expected_topk_ids", value.expected_topk_ids);
  add(tensors, "expected_topk_weights", value.expected_topk_weights);
  add(tensors, "expected_counts", value.expected_counts);
  write_safetensors(path, tensors, {{"format", kFormat}, {"version", kVersion}, {"problem", write_problem(value)}});
}

}  // namespace conclave
