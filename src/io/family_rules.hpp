// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a model's configuration, seen from one layer. Out: its MoeConfig: sizes, activation, routing and shared expert,
// exactly as the family's public implementation computes them. What a rule cannot express it refuses by name.
#pragma once

#include "conclave/config.hpp"
#include "io/model_config.hpp"

namespace conclave {

void afmoe_rule(const ModelConfig& config, MoeConfig& moe);
void dbrx_rule(const ModelConfig& config, MoeConfig& moe);
void deepseek_v2_rule(const ModelConfig& config, MoeConfig& moe);
/// Also glm4_moe and solar_open, which differ in names and defaults only.
void deepseek_v3_rule(const ModelConfig& config, MoeConfig& moe);
void dots1_rule(const ModelConfig& config, MoeConfig& moe);
void ernie_rule(const ModelConfig& config, MoeConfig& moe);
void exaone_rule(const ModelConfig& config, MoeConfig& moe);
void gpt_oss_rule(const ModelConfig& config, MoeConfig& moe);
void granite_rule(const ModelConfig& config, MoeConfig& moe);
void hunyuan_rule(const ModelConfig& config, MoeConfig& moe);
void jamba_rule(const ModelConfig& config, MoeConfig& moe);
void lfm2_rule(const ModelConfig& config, MoeConfig& moe);
void llama4_rule(const ModelConfig& config, MoeConfig& moe);
void longcat_rule(const ModelConfig& config, MoeConfig& moe);
void minimax_m2_rule(const ModelConfig& config, MoeConfig& moe);
/// Also minimax.
void mixtral_rule(const ModelConfig& config, MoeConfig& moe);
void nemotron_rule(const ModelConfig& config, MoeConfig& moe);
/// Also flex_olmo.
void olmoe_rule(const ModelConfig& config, MoeConfig& moe);
void phimoe_rule(const ModelConfig& config, MoeConfig& moe);
void qwen2_rule(const ModelConfig& config, MoeConfig& moe);
void qwen3_rule(const ModelConfig& config, MoeConfig& moe);
void qwen3_next_rule(const ModelConfig& config, MoeConfig& moe);

}  // namespace conclave
