// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A model folder as Hugging Face writes it: config.json and one or many safetensors files. Finds the MoE blocks, reads
// their routing rule and shapes from the config, and hands out their weights as views into the mapped files. Quantised
// weights stay codes where a quantisation key means what the tool wrote (docs/formats.md).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "conclave/config.hpp"
#include "conclave/layer.hpp"

namespace conclave {

struct BlockInfo {
  std::string name;   ///< As in the checkpoint and in io files: "model.layers.0.mlp".
  MoeConfig config;   ///< dtype and weight_dtype are the checkpoint's; beside decoded codes weight_dtype is f32.
  QuantConfig quant;  ///< In which load() hands the routed experts out.
  /// How the file stores them, where not as floats: "compressed-tensors pack-quantized".
  std::string format;
  QuantKey stored_key = QuantKey::none;  ///< The key that the stored codes mean, if there is one.
  std::string decoded_because;           ///< Why load() decodes them to f32 nevertheless; empty if it does not.
  double error_bound = 0;         ///< Of the output, against that of the floats the codes were made from; 0 for floats.
  std::int64_t weight_bytes = 0;  ///< As stored, router and shared experts included.
  std::int64_t num_tensors = 0;
};

class Checkpoint {
 public:
  /// Reads headers only. Throws Error naming file, tensor, value and what was expected: unknown model_type, missing
  /// shard or tensor, wrong shape, two shards with one tensor.
  explicit Checkpoint(const std::string& folder);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  const std::string& folder() const noexcept;
  /// "qwen3_moe", ...
  const std::string& model_type() const noexcept;
  const std::vector<BlockInfo>& blocks() const noexcept;
  /// Throws Error listing the blocks there are.
  const BlockInfo& block(std::string_view name) const;
  /// Tensors inside MoE blocks that no rule of the family names.
  const std::vector<std::string>& not_understood() const noexcept;

  /// The weights of one block. Expert matrices that the checkpoint stores one by one or transposed are gathered into
  /// owned memory; the others are views of the file. give_up is set.
  LayerWeights load(std::string_view block) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Every model_type that Checkpoint reads, sorted.
std::vector<std::string> supported_model_types();

}  // namespace conclave
