// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Blocks are found by their expert tensors, not by the configuration, and then compared with it: a layer that one of
// the two knows and the other does not is an error.
#include <algorithm>
#include <charconv>
#include <map>

#include "base/error.hpp"
#include "io/block_tensors.hpp"
#include "io/json_text.hpp"

namespace conclave {
namespace {

/// A name split at the block: "model.layers." "3" "." "mlp" "." and the rest.
struct Split {
  std::string_view root;  ///< "model.layers."
  std::int64_t layer = 0;
  std::string_view segment;
  std::string_view rest;
};

/// The component before the number of a layer.
constexpr std::string_view kLayerWords[] = {"layers.", "blocks."};

std::optional<Split> split(std::string_view name, const Family& family) {
  for (std::string_view word : kLayerWords) {
    const std::size_t at = name.find(word);
    if (at == std::string_view::npos || (at > 0 && name[at - 1] != '.')) continue;
    Split s;
    s.root = name.substr(0, at + word.size());
    std::string_view tail = name.substr(s.root.size());
    const auto [end, error] = std::from_chars(tail.data(), tail.data() + tail.size(), s.layer);
    if (error != std::errc() || s.layer < 0 || end == tail.data() + tail.size() || *end != '.') continue;
    tail.remove_prefix(static_cast<std::size_t>(end - tail.data()) + 1);
    for (std::string_view segment : family.segments) {
      if (segment.empty() || !tail.starts_with(segment) || tail.size() <= segment.size() || tail[segment.size()] != '.')
        continue;
      s.segment = segment;
      s.rest = tail.substr(segment.size() + 1);
      return s;
    }
  }
  return std::nullopt;
}

bool is_prediction_head(std::string_view root) {
  return root.starts_with("mtp.") || root.find(".mtp.") != std::string_view::npos;
}

/// "experts.{}.w1.weight" matches "experts.12.w1.weight".
bool matches(std::string_view rest, std::string_view pattern) {
  const std::size_t hole = pattern.find("{}");
  if (hole == std::string_view::npos) return !pattern.empty() && rest == pattern;
  const std::string_view before = pattern.substr(0, hole);
  const std::string_view after = pattern.substr(hole + 2);
  if (!rest.starts_with(before) || !rest.ends_with(after) || rest.size() <= before.size() + after.size()) return false;
  const std::string_view number = rest.substr(before.size(), rest.size() - before.size() - after.size());
  return number.find_first_not_of("0123456789") == std::string_view::npos;
}

/// `codes`: what a format calls the codes of a projection, or empty.
bool is_expert(std::string_view rest, const ExpertNames& names, std::string_view codes) {
  const auto is_of = [&](std::string_view pattern) {
    return matches(rest, pattern) ||
           (!pattern.empty() && !codes.empty() && matches(rest, std::string(projection_name(pattern)).append(codes)));
  };
  return is_of(names.gate) || is_of(names.up) || is_of(names.down);
}

std::string module_name(const Split& s, const Family& family) {
  std::string root(s.root);
  // The one family whose tree has another root on disk.
  if (family.model_type == "nemotron_h" && root.starts_with("backbone.")) root.replace(0, 9, "model.");
  return fmt::format("{}{}.{}", root, s.layer, family.io_segment);
}

void compare_with_config(const Family& family, const ModelConfig& config, const std::vector<bool>& sparse,
                         std::vector<BlockPlace>& blocks, const TensorStore& store) {
  const auto count = static_cast<std::int64_t>(sparse.size());
  const std::int64_t head = config.integer({"num_nextn_predict_layers", "num_mtp_layers"}, 0);
  std::erase_if(blocks, [&](const BlockPlace& b) { return b.layer >= count && b.layer - count < head; });
  std::vector<bool> found(sparse.size());
  for (const BlockPlace& b : blocks) {
    if (b.layer >= count)
      fail(ErrorKind::bad_file, "{}: {} has expert tensors, expected layers 0 to {} as in {}", store.path(), b.name,
           count - 1, config.path());
    const auto layer = static_cast<std::size_t>(b.layer);
    if (found[layer]) fail(ErrorKind::bad_file, "{}: two MoE blocks in layer {}, expected one", store.path(), b.layer);
    if (!sparse[layer])
      fail(ErrorKind::bad_file, "{}: {} has expert tensors, expected none: layer {} is dense by {}", store.path(),
           b.name, b.layer, config.path());
    found[layer] = true;
  }
  for (std::size_t layer = 0; layer < sparse.size(); ++layer)
    if (sparse[layer] && !found[layer])
      fail(ErrorKind::bad_file,
           "{}: layer {} has no expert tensors such as layers.{}.{}.{}, expected an MoE block by {}", store.path(),
           layer, layer, family.segments[0],
           family.experts[0]->gate.empty() ? family.experts[0]->up : family.experts[0]->gate, config.path());
}

}  // namespace

std::vector<BlockPlace> find_gguf_blocks(const Family& family, const ModelConfig& config, const TensorStore& store) {
  constexpr std::string_view kRoot = "blk.";
  std::map<std::int64_t, BlockPlace> by_layer;
  for (const auto& [name, _] : store.tensors()) {
    if (!name.starts_with(kRoot)) continue;
    const std::string_view tail = std::string_view(name).substr(kRoot.size());
    std::int64_t layer = 0;
    const auto [end, error] = std::from_chars(tail.data(), tail.data() + tail.size(), layer);
    if (error != std::errc() || layer < 0 || end == tail.data() + tail.size() || *end != '.') continue;
    const std::string_view rest = tail.substr(static_cast<std::size_t>(end - tail.data()) + 1);
    // Attention and norms are beside the block's tensors under the same prefix.
    if (!rest.starts_with("ffn_") && !rest.starts_with("exp_")) continue;
    if (rest.starts_with("ffn_norm") || rest.starts_with("ffn_post_norm")) continue;
    BlockPlace& place = by_layer[layer];
    place.layer = layer;
    place.prefix = name.substr(0, name.size() - rest.size());
    place.name = fmt::format("model.layers.{}.{}", layer, family.io_segment);
    place.tensors.push_back(name);
    if (is_expert(rest, *family.experts[0], {})) place.experts = family.experts[0];
  }
  std::vector<BlockPlace> blocks;
  for (auto& [_, place] : by_layer)
    if (place.experts != nullptr) blocks.push_back(std::move(place));
  compare_with_config(family, config, family.sparse_layers(config), blocks, store);
  return blocks;
}

std::vector<BlockPlace> find_blocks(const Family& family, const ModelConfig& config, const TensorStore& store,
                                    const WeightFormat* format) {
  const std::string_view codes = format == nullptr ? std::string_view() : format->code_suffix();
  std::map<std::string, BlockPlace> by_prefix;
  for (const auto& [name, _] : store.tensors()) {
    const std::optional<Split> s = split(name, family);
    if (!s || is_prediction_head(s->root)) continue;
    const std::string prefix = name.substr(0, name.size() - s->rest.size());
    BlockPlace& place = by_prefix[prefix];
    place.layer = s->layer;
    place.prefix = prefix;
    if (place.name.empty()) place.name = module_name(*s, family);
    place.tensors.push_back(name);
    for (const ExpertNames* names : family.experts)
      if (place.experts == nullptr && names != nullptr && is_expert(s->rest, *names, codes)) place.experts = names;
  }
  std::vector<BlockPlace> blocks;
  for (auto& [_, place] : by_prefix)
    if (place.experts != nullptr) blocks.push_back(std::move(place));
  std::stable_sort(blocks.begin(), blocks.end(),
                   [](const BlockPlace& a, const BlockPlace& b) { return a.layer < b.layer; });
  compare_with_config(family, config, family.sparse_layers(config), blocks, store);
  return blocks;
}

}  // namespace conclave
