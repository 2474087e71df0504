// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Model families as data: one row says where an architecture keeps the tensors of its MoE blocks and which rule turns
// its config.json into a MoeConfig. Names are relative to the block ("model.layers.3.mlp.") and as save_pretrained
// writes them to disk; where the module tree of the public implementation calls something else, io_* says so.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "conclave/config.hpp"
#include "io/model_config.hpp"

namespace conclave {

/// How expert matrices lie in a file. W is the experts' width (hidden or latent size), I the inner width.
enum class ExpertLayout : std::uint8_t {
  each,              ///< one tensor an expert and projection: gate [I, W], up [I, W], down [W, I]
  fused,             ///< gate_up [E, 2I, W] (up [E, I, W] without a gate), down [E, W, I]
  fused_transposed,  ///< gate_up [E, W, 2I], down [E, I, W]
  stacked,           ///< gate [E, I, W], up [E, I, W], down [E, W, I]: GGUF
  flat,              ///< gate [E*I, W], up [E*I, W], down [E*I, W], which is transposed
};

/// "{}" stands for the number of the expert. Empty: the layout or the family has none.
struct ExpertNames {
  ExpertLayout layout = ExpertLayout::each;
  std::string_view gate;  ///< The gate, or gate and up together where the layout fuses them.
  std::string_view up;
  std::string_view down;
  std::string_view w13_bias = {};
  std::string_view w2_bias = {};
  std::string_view up_bias = {};  ///< Stacked layout: w13_bias is the gate's alone.
};

/// Alternatives in the order of preference; the first that the file has is taken.
using Names = std::array<std::string_view, 2>;

struct Family {
  std::string_view model_type;
  /// Path components between the layer's number and the block's tensors, on disk.
  Names segments;
  /// The same in the module tree.
  std::string_view io_segment;
  /// Layouts that checkpoints of this family come in: as published, then as the modules hold them.
  std::array<const ExpertNames*, 2> experts;
  Names router;
  std::string_view router_bias = {};
  Names correction_bias = {};
  std::string_view shared = {};  ///< Prefix of shared_parts.
  std::array<std::string_view, 3> shared_parts = {"gate_proj.weight", "up_proj.weight", "down_proj.weight"};
  std::string_view shared_gate = {};  ///< [1, H]
  std::string_view latent_in = {};
  std::string_view latent_out = {};
  /// Which layers have an MoE block; its size is the number of layers.
  std::vector<bool> (*sparse_layers)(const ModelConfig&) = nullptr;
  /// Everything of MoeConfig but dtypes, for the layer that the config looks from.
  void (*rule)(const ModelConfig&, MoeConfig&) = nullptr;
};

/// The same family with the names that GGUF gives its tensors; blocks are called as in the module tree.
Family gguf_names_of(const Family& family);

/// The table, sorted by model_type.
std::span<const Family> families() noexcept;
/// Throws Error naming the type and every supported one.
const Family& family_of(const ModelConfig& config);

/// The rule of one layer, with the checks that hold for every family.
MoeConfig moe_config_of(const Family& family, const ModelConfig& config);

}  // namespace conclave
