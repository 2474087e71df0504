// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Each rule is the one that the family's public implementation uses to build its decoder layers.
#include "io/family_layers.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace conclave {
namespace {

/// Far above any model; bounds what a hostile configuration can make us allocate.
constexpr std::int64_t kMaxLayers = 10'000;

std::int64_t positive(const ModelConfig& config, Keys keys, std::int64_t absent) {
  const std::int64_t value = config.integer(keys, absent);
  if (value <= 0) config.refuse(*keys.begin(), "more than 0");
  return value;
}

std::int64_t num_layers(const ModelConfig& config) {
  // LongCat counts its layers in num_layers; its num_hidden_layers is the number of attention blocks, twice that.
  std::string_view key = "num_hidden_layers";
  if (config.model_type() == "longcat_flash") key = "num_layers";
  if (config.model_type() == "dbrx") key = "n_layers";
  const std::int64_t n = config.integer({key});
  if (n < 0 || n > kMaxLayers) config.refuse(key, fmt::format("0 to {}", kMaxLayers));
  return n;
}

template <class Predicate>
std::vector<bool> layers_where(std::int64_t count, Predicate is_sparse) {
  std::vector<bool> layers(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) layers[static_cast<std::size_t>(i)] = is_sparse(i);
  return layers;
}

/// One word a layer, of which `sparse` means an MoE block.
std::vector<bool> layers_named(const ModelConfig& config, std::string_view key, const std::vector<std::string>& words,
                               std::string_view sparse) {
  if (static_cast<std::int64_t>(words.size()) > kMaxLayers) config.refuse(key, fmt::format("at most {}", kMaxLayers));
  return layers_where(static_cast<std::int64_t>(words.size()),
                      [&](std::int64_t i) { return words[static_cast<std::size_t>(i)] == sparse; });
}

bool contains(const std::optional<std::vector<std::int64_t>>& list, std::int64_t value) {
  return list && std::find(list->begin(), list->end(), value) != list->end();
}

}  // namespace

std::vector<bool> every_layer(const ModelConfig& config) {
  return layers_where(num_layers(config), [](std::int64_t) { return true; });
}

std::vector<bool> after_first_k_dense(const ModelConfig& config) {
  if (const auto types = config.texts("mlp_layer_types"))
    return layers_named(config, "mlp_layer_types", *types, "sparse");
  // Required: defaults differ between families, and every published configuration has it.
  const std::int64_t dense = config.integer({"first_k_dense_replace"});
  const std::int64_t step = positive(config, {"moe_layer_freq"}, 1);
  return layers_where(num_layers(config), [&](std::int64_t i) { return i >= dense && i % step == 0; });
}

std::vector<bool> after_dense_layers(const ModelConfig& config) {
  const std::int64_t dense = config.integer({"num_dense_layers"});
  return layers_where(num_layers(config), [&](std::int64_t i) { return i >= dense; });
}

std::vector<bool> qwen_layers(const ModelConfig& config) {
  const std::int64_t step = positive(config, {"decoder_sparse_step"}, 1);
  const auto dense = config.integers("mlp_only_layers");
  return layers_where(num_layers(config), [&](std::int64_t i) { return !contains(dense, i) && (i + 1) % step == 0; });
}

std::vector<bool> ernie_layers(const ModelConfig& config) {
  const std::int64_t count = num_layers(config);
  const std::int64_t first = config.integer({"moe_layer_start_index"}, 1);
  const std::int64_t given_last = config.integer({"moe_layer_end_index"}, -1);
  const std::int64_t last = given_last == -1 ? count - 1 : given_last;
  const std::int64_t step = positive(config, {"moe_layer_interval"}, 1);
  return layers_where(count, [&](std::int64_t i) { return (i + 1) % step == 0 && i >= first && i <= last; });
}

std::vector<bool> jamba_layers(const ModelConfig& config) {
  const std::int64_t period = positive(config, {"expert_layer_period"}, 2);
  const std::int64_t offset = config.integer({"expert_layer_offset"}, 1);
  // With one expert the public implementation builds a dense layer.
  const bool has_experts = config.integer({"num_experts", "num_local_experts"}, 16) > 1;
  return layers_where(num_layers(config), [&](std::int64_t i) { return has_experts && i % period == offset; });
}

std::vector<bool> llama4_layers(const ModelConfig& config) {
  if (const auto listed = config.integers("moe_layers"))
    return layers_where(num_layers(config), [&](std::int64_t i) { return contains(listed, i); });
  const std::int64_t step = positive(config, {"interleave_moe_layer_step"}, 1);
  return layers_where(num_layers(config), [&](std::int64_t i) { return (i + 1) % step == 0; });
}

std::vector<bool> nemotron_layers(const ModelConfig& config) {
  for (const char* key : {"layers_block_type", "layer_types"})
    if (const auto types = config.texts(key)) return layers_named(config, key, *types, "moe");
  const std::string pattern = config.text("hybrid_override_pattern", "");
  if (pattern.empty()) config.refuse("layers_block_type", "a list of one word for each layer");
  std::vector<std::string> letters;
  for (char c : pattern) letters.emplace_back(1, c);
  return layers_named(config, "hybrid_override_pattern", letters, "E");
}

}  // namespace conclave
