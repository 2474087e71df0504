// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// LayerWeights against MoeConfig: what is missing, what is extra, what has the wrong shape.
#pragma once

#include "conclave/layer.hpp"

namespace conclave {

/// Throws Error naming the first tensor that the config asks for and is missing, is given but unknown to the config,
/// or has another shape or dtype than expected. Expert matrices are checked by the part that packs them.
void check_layer_weights(const MoeConfig& moe, const LayerWeights& weights);

/// The shared expert's matrices as weights of one expert: [1, 2Is | Is, H] and [1, H, Is].
ExpertWeights shared_as_experts(const LayerWeights& weights);

}  // namespace conclave
