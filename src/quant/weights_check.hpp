// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a configuration, keys and the tensors that a caller brings. Out: nothing, or an Error of one line that names the
// tensor, what was given and what was expected.
#pragma once

#include "conclave/config.hpp"
#include "conclave/weights.hpp"

namespace conclave::quant {

/// Elements, scales, global scales and zero points of w13 and w2, as shapes_of() says with the experts in front.
/// Trailing extents of 1 may be missing; a tensor-wide scale of a gated w13 is [E_local], or [E_local, 2] for gate and
/// up. Refuses scales that are NaN, infinite or negative and zero points beyond 15: a checkpoint that holds one is
/// broken, and its rows would be wrong without a sign of it.
void check_quantised_weights(const MoeConfig& moe, QuantKey key, const ExpertWeights& weights);

/// a1_scale and a2_scale: f32, one value or one for each local expert, positive, exactly where `activations` is static.
void check_activation_scales(QuantKey activations, const ExpertWeights& weights);

}  // namespace conclave::quant
