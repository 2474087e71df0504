// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the configuration of a layer and a seed. Out: every tensor that the configuration asks for, and the right output.
#pragma once

#include <map>
#include <string>

#include "conclave/layer.hpp"
#include "verify/oracle.hpp"
#include "verify/problem.hpp"

namespace conclave::verify_detail {

struct LayerData {
  Problem problem;
  Slab hidden_states, logits;
  std::map<std::string, Slab> tensors;  ///< By their name in LayerWeights or ExpertWeights.
  Slab token_ids;                       ///< i32 [M]

  LayerWeights weights() const;
  LayerInput input() const;
  LayerData copy() const;
};

LayerData make_layer_data(const MoeConfig& moe, const DeviceFacts& device, std::int64_t num_tokens, std::uint64_t seed);

/// The whole layer in f64: routing, routed sum, zero experts, latent projections, factor, shared expert.
OracleOutput oracle_layer(const LayerData& data);

}  // namespace conclave::verify_detail
