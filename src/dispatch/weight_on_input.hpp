// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// x := x * w before the experts. The product is rounded to the type of x: activations have that type, and the models
// that weight their input (Llama 4) round there too.
#pragma once

#include <cstdint>

#include "conclave/prepare_finalize.hpp"

namespace conclave::dispatch {

/// Activations as the caller of prepare must give them: [M, H] of the layer's dtype and width with contiguous columns
/// (row stride free), ids and weights [M, k], k = 1 where weights go on the input. Throws Error naming the argument.
void check_prepare(const PrepareInput& input, const MoeConfig& moe);

/// The router weight of (token, pick), whatever its dtype.
float router_weight(const Routing& routing, std::int64_t token, std::int64_t pick);

/// to [H] := from [H] * weight, rounded to their dtype. Both contiguous, of one dtype; they may not overlap.
void scale_row(const ConstTensorView& from, float weight, const TensorView& to);

}  // namespace conclave::dispatch
