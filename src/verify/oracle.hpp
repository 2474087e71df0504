// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The arithmetic of the layer once more, in f64, one token and one expert at a time: what every kernel is compared
// with. Shares no code with the library's own reference part, so that a shared mistake cannot hide.
#pragma once

#include <optional>
#include <vector>

#include "conclave/config.hpp"
#include "conclave/weights.hpp"
#include "verify/oracle_routing.hpp"

namespace conclave::verify_detail {

/// act(gate, up), or act(gate) where there is no gate. Constants as resolve() fills them in.
double oracle_activation(Activation activation, const ActivationParams& params, double gate, double up);

/// W2 act(W13 x + b13) + b2 of one expert; biases may be empty. Quantised activations go through their codes before
/// each product.
struct OracleExpert {
  std::int64_t hidden_size = 0, intermediate_size = 0;
  std::vector<double> w13, w2, w13_bias, w2_bias;
  QuantKey activations = QuantKey::none;
  double a1_scale = 1, a2_scale = 1;  ///< Of the whole tensor, where the key has such a scale.

  /// act(W13 x + b13), x already quantised.
  std::vector<double> inner(const MoeConfig& moe, const std::vector<double>& x) const;
  std::vector<double> apply(const MoeConfig& moe, const std::vector<double>& x) const;
};

/// Local experts as f64.
std::vector<OracleExpert> oracle_experts(const ExpertWeights& weights);
std::vector<OracleExpert> oracle_experts(const Problem& problem, const ExpertWeights& weights);

struct OracleOutput {
  std::vector<double> values;              ///< [num_tokens, hidden_size]
  std::vector<bool> row_has_local_expert;  ///< Where false, the row must be exact zeros.
};

/// The routed sum of this rank. Slots with ids that have no local expert are skipped, as are zero weights.
OracleOutput oracle_moe(const MoeConfig& moe, const ConstTensorView& hidden_states, const OracleRouting& routing,
                        std::vector<OracleExpert> experts, const std::optional<ConstTensorView>& expert_map);

}  // namespace conclave::verify_detail
