// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a family and the tensors of a model. Out: where its MoE blocks are, and which tensor of the file is which part of
// a block, all shapes and dtypes checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/families.hpp"
#include "io/tensor_store.hpp"

namespace conclave {

/// Where one block's tensors are; names are those of the file.
struct BlockPlace {
  std::int64_t layer = 0;
  std::string prefix;  ///< "backbone.layers.3.mixer.": before every tensor's name.
  std::string name;    ///< "model.layers.3.mixer": the module path.
  const ExpertNames* experts = nullptr;
  std::vector<std::string> tensors;  ///< Everything under the prefix.
};

/// Blocks in the order of layers. Layers of a multi-token-prediction head (a component "mtp", or as many layers after
/// the last as the config announces) are left out: they are not part of the model's forward pass.
std::vector<BlockPlace> find_blocks(const Family& family, const ModelConfig& config, const TensorStore& store);

/// The parts of one block. Vectors have one element an expert (ExpertLayout::each), or one.
struct BlockTensors {
  ExpertLayout layout = ExpertLayout::each;
  std::vector<StoredTensor> gate, up, down;
  std::optional<StoredTensor> w13_bias, w2_bias;
  std::optional<StoredTensor> router, router_bias, correction_bias;
  std::optional<StoredTensor> shared_gate_proj, shared_up_proj, shared_down_proj, shared_gate;
  std::optional<StoredTensor> latent_in, latent_out;

  DType dtype = DType::bf16;  ///< Of all expert matrices.
  std::int64_t bytes = 0;
  std::int64_t num_tensors = 0;
  std::vector<std::string> not_understood;
};

/// Throws Error(bad_file) naming file, tensor, what was found and what was expected.
BlockTensors resolve_block(const Family& family, const BlockPlace& place, const MoeConfig& moe,
                           const TensorStore& store);

}  // namespace conclave
