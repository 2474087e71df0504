// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What the layer computes around the kernel, one function a step. f32 inside, one rounding at the end.
#pragma once

#include <optional>

#include "conclave/config.hpp"
#include "conclave/flow.hpp"
#include "conclave/stream.hpp"

namespace conclave {

/// (ids, weights) of the router -> the same without zero experts (slot -1, weight 0), and for each token the summed
/// weight of the zero experts it chose. All [M, slots] but zero_weight [M].
void split_zero_experts(const Routing& routing, std::int64_t first_zero_id, const Routing& experts,
                        const TensorView& zero_weight, Stream stream);

/// out[m, n] = a[m, :] . w[n, :], rounded to out's dtype; `f32` is scratch of at least M * N elements.
void project(const ConstTensorView& a, const ConstTensorView& w, const TensorView& f32, const TensorView& out,
             Stream stream);

/// ids 0 and weight sigmoid(x . gate), or 1 without a gate: the routing of the shared expert.
void route_shared(const ConstTensorView& hidden_states, const std::optional<ConstTensorView>& gate,
                  const Routing& routing, Stream stream);

struct EpilogueInput {
  ConstTensorView routed;                      ///< [M, H]; f32, or what the experts rounded to the layer's dtype
  double routed_scale = 1.0;                   ///< 1 where the router folded the factor into the weights
  ConstTensorView hidden_states;               ///< [M, H]
  std::optional<ConstTensorView> zero_weight;  ///< f32 [M]
  std::optional<ConstTensorView> shared;       ///< [M, H]
};
/// output = routed * scale + hidden * zero_weight + shared, rounded once.
void epilogue(const EpilogueInput& input, const TensorView& output, Stream stream);

}  // namespace conclave
