// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A folder -> its blocks (headers only) -> the weights of one block at a time.
#include "conclave/checkpoint.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "io/json_text.hpp"
#include "io/load_block.hpp"
#include "io/source.hpp"

namespace conclave {
namespace {

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
  const Source source = open_source(folder);
  impl_->folder = folder;
  impl_->model_type = source.config.model_type();
  impl_->store = source.store;
  for (const BlockPlace& place : source.places) {
    BlockInfo info;
    info.name = place.name;
    info.config = moe_config_of(source, place);
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
