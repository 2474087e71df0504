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
#include "io/formats/weight_format.hpp"
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

/// Blocks in the order of layers. `format` may be null: then no names but those of plain tensors are looked for.
/// Layers of a multi-token-prediction head (a component "mtp", or as many layers after
/// the last as the config announces) are left out: they are not part of the model's forward pass.
std::vector<BlockPlace> find_blocks(const Family& family, const ModelConfig& config, const TensorStore& store,
                                    const WeightFormat* format);
/// The same in a GGUF file, whose layers are "blk.0." and so on. `family` has the names of such files.
std::vector<BlockPlace> find_gguf_blocks(const Family& family, const ModelConfig& config, const TensorStore& store);

/// One element an expert, or one for all of them together. Without a gate of its own, up is gate and up together.
struct StoredExperts {
  std::vector<StoredProjection> gate, up, down;
};

/// The parts of one block. Vectors have one element an expert (ExpertLayout::each), or one.
struct BlockTensors {
  ExpertLayout layout = ExpertLayout::each;
  std::vector<StoredTensor> gate, up, down;
  std::optional<StoredTensor> w13_bias, w2_bias;
  std::optional<StoredTensor> up_bias;  ///< Where w13_bias is the gate's alone.
  std::optional<StoredTensor> router, router_bias, correction_bias;
  std::optional<StoredTensor> shared_gate_proj, shared_up_proj, shared_down_proj, shared_gate;
  std::optional<StoredTensor> latent_in, latent_out;

  /// Where some of the block's experts are stored in codes: all routed experts, instead of gate, up and down above, and
  /// the shared ones if they are among them.
  StoredExperts coded, coded_shared;
  QuantKey key = QuantKey::none;  ///< In which coded experts are handed out; none: decoded to f32
  std::string decoded_because;    ///< Then, the reason.

  DType dtype = DType::bf16;  ///< In which plain and decoded matrices are handed out.
  std::int64_t bytes = 0;
  std::int64_t num_tensors = 0;
  std::vector<std::string> not_understood;
};

/// Throws Error(bad_file) naming file, tensor, what was found and what was expected.
BlockTensors resolve_block(const Family& family, const BlockPlace& place, const MoeConfig& moe,
                           const TensorStore& store, const std::shared_ptr<const WeightFormat>& format);

/// "experts.3.up_proj" of "experts.3.up_proj.weight": what the names of a format's tensors begin with.
std::string_view projection_name(std::string_view tensor) noexcept;

}  // namespace conclave
