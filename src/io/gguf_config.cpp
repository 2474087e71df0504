// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One row an architecture. What a file does not say (whether chosen weights are divided by their sum, mostly) is what
// the programs that run such files do for the architecture.
#include "io/gguf_config.hpp"

#include <array>

#include "base/error.hpp"
#include "io/json_text.hpp"

namespace conclave {
namespace {

using nlohmann::json;

/// The keys of one file, without the architecture in front.
class FileKeys {
 public:
  FileKeys(const json& metadata, std::string architecture, const std::string& path)
      : metadata_(metadata), architecture_(std::move(architecture)), path_(path) {}

  const json* find(std::string_view key) const {
    const auto found = metadata_.find(architecture_ + "." + std::string(key));
    if (found == metadata_.end() || found->is_null()) return nullptr;
    // Bytes of a text need not be UTF-8, and no key that is read here is one.
    if (found->is_string())
      fail(ErrorKind::bad_file, "{}: \"{}.{}\": given {}, expected a number", path_, architecture_, key, shown(*found));
    return &*found;
  }
  const json& get(std::string_view key) const {
    const json* value = find(key);
    if (value == nullptr)
      fail(ErrorKind::bad_file, "{}: \"{}.{}\" is missing, expected a number", path_, architecture_, key);
    return *value;
  }
  json get(std::string_view key, const json& absent) const {
    const json* value = find(key);
    return value == nullptr ? absent : *value;
  }
  [[noreturn]] void refuse(std::string_view key, std::string_view expected) const {
    fail(ErrorKind::bad_file, "{}: \"{}.{}\": given {}, expected {}", path_, architecture_, key, shown(get(key)),
         expected);
  }

 private:
  const json& metadata_;
  std::string architecture_;
  const std::string& path_;
};

void common(const FileKeys& keys, json& c) {
  c["num_hidden_layers"] = keys.get("block_count");
  c["hidden_size"] = keys.get("embedding_length");
  c["num_experts"] = keys.get("expert_count");
  c["num_experts_per_tok"] = keys.get("expert_used_count");
}

void qwen3(const FileKeys& keys, json& c) {
  c["model_type"] = "qwen3_moe";
  c["moe_intermediate_size"] = keys.get("expert_feed_forward_length");
  c["norm_topk_prob"] = true;
}

void qwen2(const FileKeys& keys, json& c) {
  c["model_type"] = "qwen2_moe";
  c["moe_intermediate_size"] = keys.get("expert_feed_forward_length");
  c["shared_expert_intermediate_size"] = keys.get("expert_shared_feed_forward_length");
}

/// Mixtral has no architecture of its own.
void llama(const FileKeys& keys, json& c) {
  c["model_type"] = "mixtral";
  c["intermediate_size"] = keys.get("feed_forward_length");
}

void olmoe(const FileKeys& keys, json& c) {
  c["model_type"] = "olmoe";
  c["intermediate_size"] = keys.get("feed_forward_length");
}

void deepseek2(const FileKeys& keys, json& c) {
  constexpr int kSoftmax = 1, kSigmoid = 2;
  const json gating = keys.get("expert_gating_func", kSoftmax);
  if (gating != kSoftmax && gating != kSigmoid) keys.refuse("expert_gating_func", "1 (softmax) or 2 (sigmoid)");
  c["model_type"] = gating == kSigmoid ? "deepseek_v3" : "deepseek_v2";
  c["moe_intermediate_size"] = keys.get("expert_feed_forward_length");
  c["first_k_dense_replace"] = keys.get("leading_dense_block_count", 0);
  c["n_shared_experts"] = keys.get("expert_shared_count", 0);
  c["routed_scaling_factor"] = keys.get("expert_weights_scale", 1.0);
  c["norm_topk_prob"] = keys.get("expert_weights_norm", false);
  c["n_group"] = keys.get("expert_group_count", 1);
  c["topk_group"] = keys.get("expert_group_used_count", 1);
  if (gating == kSoftmax) c["topk_method"] = c["n_group"] == 1 ? "greedy" : "group_limited_greedy";
}

void gpt_oss(const FileKeys& keys, json& c) {
  c["model_type"] = "gpt_oss";
  c["intermediate_size"] = keys.get("expert_feed_forward_length");
}

struct Row {
  std::string_view architecture;
  void (*fill)(const FileKeys&, json&);
};
constexpr std::array<Row, 6> kRows{{{"deepseek2", deepseek2},
                                    {"gpt-oss", gpt_oss},
                                    {"llama", llama},
                                    {"olmoe", olmoe},
                                    {"qwen2moe", qwen2},
                                    {"qwen3moe", qwen3}}};

}  // namespace

ModelConfig gguf_config(const json& metadata, const std::string& path) {
  const auto parts = metadata.find("split.count");
  if (parts != metadata.end() && json_integer(*parts, path + ": \"split.count\"") > 1)
    fail(ErrorKind::bad_file, "{}: \"split.count\": given {}, expected a model in one file", path, shown(*parts));
  const auto found = metadata.find("general.architecture");
  if (found == metadata.end()) fail(ErrorKind::bad_file, "{}: no \"general.architecture\"", path);
  const std::string& architecture = json_string(*found, path + ": \"general.architecture\"");
  std::string known;
  for (const Row& row : kRows) {
    known += (known.empty() ? "" : ", ") + std::string(row.architecture);
    if (row.architecture != architecture) continue;
    const FileKeys keys(metadata, architecture, path);
    json config = json::object();
    common(keys, config);
    row.fill(keys, config);
    return ModelConfig(config.dump(), path);
  }
  fail(ErrorKind::bad_file, "{}: architecture {}, expected one of {}", path, in_quotes(architecture), known);
}

}  // namespace conclave
