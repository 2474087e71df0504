// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The MoE layer written down in double precision straight from config.hpp and routing.hpp, sharing no code with the
// library: what a checkpoint's MoeConfig and weights are proven against.
#pragma once

#include <cstdint>
#include <vector>

#include "conclave/config.hpp"
#include "conclave/layer.hpp"

namespace conclave::test {

struct PlainResult {
  std::vector<double> output;                ///< [M, H]
  std::vector<std::vector<int>> ids;         ///< Of each row, in the order in which they were chosen.
  std::vector<std::vector<double>> weights;  ///< Beside them.
};

/// hidden_states: f32 [M, H].
PlainResult plain_layer(const MoeConfig& moe, const LayerWeights& weights, const float* hidden_states,
                        std::int64_t num_tokens);

/// One element of an f32, bf16 or f16 tensor.
double element(const ConstTensorView& view, std::int64_t index);

}  // namespace conclave::test
