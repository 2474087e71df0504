// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A folder has a configuration beside its tensors, a GGUF file has both in one.
#include "io/source.hpp"

#include <filesystem>
#include <optional>

#include "base/error.hpp"
#include "io/gguf_config.hpp"
#include "io/json_text.hpp"
#include "io/mapped_file.hpp"

namespace conclave {
namespace {

ModelConfig read_config(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  return ModelConfig(read_text_file(path, kMaxConfigBytes), path);
}

/// What says how weights are quantised: an object of config.json, or a file of its own beside it.
std::optional<ModelConfig> quantisation_of(const std::string& folder, const ModelConfig& config) {
  constexpr const char* kKey = "quantization_config";
  if (config.has(kKey)) return config.section(kKey);
  const std::string path = (std::filesystem::path(folder) / "hf_quant_config.json").string();
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  const nlohmann::json document = parse_json(read_text_file(path, kMaxConfigBytes), path);
  const auto found = document.is_object() ? document.find("quantization") : document.end();
  if (found == document.end() || !found->is_object())
    fail(ErrorKind::bad_file, "{}: no object \"quantization\", expected how the weights are stored", path);
  nlohmann::json settings = *found;
  if (!settings.contains("quant_method")) settings["quant_method"] = "modelopt";
  settings["model_type"] = config.model_type();
  return ModelConfig(settings.dump(), path);
}

Source open_folder(const std::string& folder) {
  ModelConfig config = read_config(folder);
  const Family& family = family_of(config);
  auto store = std::make_shared<const TensorStore>(folder);
  const std::optional<ModelConfig> quantisation = quantisation_of(folder, config);
  auto format = quantisation ? open_weight_format(*quantisation) : nullptr;
  auto places = find_blocks(family, config, *store, format.get());
  return {std::move(config), std::move(store), family, std::move(format), std::move(places)};
}

Source open_gguf(const std::string& path) {
  auto file = std::make_unique<const MappedFile>(path);
  const GgufHeader header = parse_gguf_header(file->bytes(), path);
  ModelConfig config = gguf_config(header.metadata, path);
  const Family family = gguf_names_of(family_of(config));
  auto store = std::make_shared<const TensorStore>(path, std::move(file), header);
  auto places = find_gguf_blocks(family, config, *store);
  // Every tensor says itself how it is stored.
  return {std::move(config), std::move(store), family, plain_weight_format(".weight"), std::move(places), true};
}

}  // namespace

Source open_source(const std::string& path) {
  return path.ends_with(".gguf") ? open_gguf(path) : open_folder(path);
}

MoeConfig moe_config_of(const Source& source, const BlockPlace& place) {
  MoeConfig moe = moe_config_of(source.family, source.config.at_layer(place.layer));
  // Such files have gate and up in tensors of their own, whatever the order in the model's own.
  if (source.is_gguf) moe.w13_layout = W13Layout::gate_up;
  return moe;
}

}  // namespace conclave
