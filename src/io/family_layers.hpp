// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a model's configuration. Out: which of its layers have an MoE block, by each family's own rule.
#pragma once

#include <vector>

#include "io/model_config.hpp"

namespace conclave {

std::vector<bool> every_layer(const ModelConfig& config);
/// first_k_dense_replace and moe_layer_freq, or mlp_layer_types where given.
std::vector<bool> after_first_k_dense(const ModelConfig& config);
/// num_dense_layers
std::vector<bool> after_dense_layers(const ModelConfig& config);
/// decoder_sparse_step and mlp_only_layers
std::vector<bool> qwen_layers(const ModelConfig& config);
/// moe_layer_start_index, moe_layer_end_index, moe_layer_interval
std::vector<bool> ernie_layers(const ModelConfig& config);
/// expert_layer_period and expert_layer_offset
std::vector<bool> jamba_layers(const ModelConfig& config);
/// moe_layers or interleave_moe_layer_step
std::vector<bool> llama4_layers(const ModelConfig& config);
/// layers_block_type or hybrid_override_pattern
std::vector<bool> nemotron_layers(const ModelConfig& config);

}  // namespace conclave
