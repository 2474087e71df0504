// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A folder -> its blocks (headers only) -> the weights of one block at a time.
#include "conclave/checkpoint.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/error.hpp"
#include "io/block_tensors.hpp"
#include "io/gguf_config.hpp"
#include "io/json_text.hpp"
#include "io/load_block.hpp"
#include "io/mapped_file.hpp"

namespace conclave {
namespace {

/// Published configurations have a few kilobytes; a list for each layer and expert would still fit.
constexpr std::int64_t kMaxConfigBytes = 16 << 20;

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

/// The type in which a quantised model computes.
DType compute_dtype(const ModelConfig& config, const BlockTensors& tensors) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const std::string name = config.text(key, "");
    if (name == "bfloat16") return DType::bf16;
    if (name == "float16") return DType::f16;
    if (name == "float32") return DType::f32;
  }
  return tensors.router->view.dtype;
}

void describe_codes(const ModelConfig& config, const BlockTensors& tensors, BlockInfo& info) {
  const StoredProjection& up = tensors.coded.up[0];
  info.format = up.format->name();
  info.stored_key = up.format->key();
  for (const auto* part : {&tensors.coded.gate, &tensors.coded.up, &tensors.coded.down})
    for (const StoredProjection& p : *part)
      info.error_bound = std::max(info.error_bound, error_bound(p.format->error_key()));
  info.quant.weights = tensors.key;
  info.decoded_because = tensors.decoded_because;
  info.config.dtype = compute_dtype(config, tensors);
  if (tensors.dtype != DType::f32 && !tensors.shared_up_proj) info.config.weight_dtype = info.config.dtype;
}

/// What a checkpoint is read from, before its blocks are.
struct Source {
  ModelConfig config;
  std::shared_ptr<const TensorStore> store;
  Family family;
  std::shared_ptr<const WeightFormat> format;  ///< Null: floats only.
  std::vector<BlockPlace> places;
  bool is_gguf = false;
};

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

struct Checkpoint::Impl {
  std::string folder;
  std::string model_type;
  std::shared_ptr<const TensorStore> store;
  std::vector<BlockInfo> blocks;
  std::vector<BlockTensors> tensors;
  std::vector<std::string> not_understood;
};

Checkpoint::Checkpoint(const std::string& folder) : impl_(std::make_unique<Impl>()) {
  const Source source = folder.ends_with(".gguf") ? open_gguf(folder) : open_folder(folder);
  impl_->folder = folder;
  impl_->model_type = source.config.model_type();
  impl_->store = source.store;
  for (const BlockPlace& place : source.places) {
    BlockInfo info;
    info.name = place.name;
    info.config = moe_config_of(source.family, source.config.at_layer(place.layer));
    // Such files have gate and up in tensors of their own, whatever the order in the model's own.
    if (source.is_gguf) info.config.w13_layout = W13Layout::gate_up;
    BlockTensors tensors = resolve_block(source.family, place, info.config, *source.store, source.format);
    info.config.dtype = tensors.dtype;
    info.config.weight_dtype = tensors.dtype;
    if (!tensors.coded.up.empty()) describe_codes(source.config, tensors, info);
    info.weight_bytes = tensors.bytes;
    info.num_tensors = tensors.num_tensors;
    impl_->not_understood.insert(impl_->not_understood.end(), tensors.not_understood.begin(),
                                 tensors.not_understood.end());
    impl_->blocks.push_back(std::move(info));
    impl_->tensors.push_back(std::move(tensors));
  }
}

Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

const std::string& Checkpoint::folder() const noexcept {
  return impl_->folder;
}
const std::string& Checkpoint::model_type() const noexcept {
  return impl_->model_type;
}
const std::vector<BlockInfo>& Checkpoint::blocks() const noexcept {
  return impl_->blocks;
}
const std::vector<std::string>& Checkpoint::not_understood() const noexcept {
  return impl_->not_understood;
}

const BlockInfo& Checkpoint::block(std::string_view name) const {
  std::string known;
  for (const BlockInfo& info : impl_->blocks) {
    if (info.name == name) return info;
    known += (known.empty() ? "" : ", ") + info.name;
  }
  fail(ErrorKind::invalid_argument, "{}: no MoE block {}, expected one of {}", impl_->folder, in_quotes(name), known);
}

LayerWeights Checkpoint::load(std::string_view name) const {
  const BlockInfo& info = block(name);
  const auto index = static_cast<std::size_t>(&info - impl_->blocks.data());
  return load_block(impl_->tensors[index], info.config, impl_->store);
}

}  // namespace conclave
