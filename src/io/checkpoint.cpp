// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A folder -> its blocks (headers only) -> the weights of one block at a time.
#include "conclave/checkpoint.hpp"

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "io/block_tensors.hpp"
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
  const ModelConfig config = read_config(folder);
  const Family& family = family_of(config);
  impl_->folder = folder;
  impl_->model_type = config.model_type();
  impl_->store = std::make_shared<TensorStore>(folder);
  for (const BlockPlace& place : find_blocks(family, config, *impl_->store)) {
    BlockInfo info;
    info.name = place.name;
    info.config = moe_config_of(family, config.at_layer(place.layer));
    BlockTensors tensors = resolve_block(family, place, info.config, *impl_->store);
    info.config.dtype = tensors.dtype;
    info.config.weight_dtype = tensors.dtype;
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
