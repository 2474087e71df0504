// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: copies of one layer on a GPU, an input, draws of logits. Out: the time of a call, by the GPU's clock around
// replays of one graph that holds several calls.
#pragma once

#include <memory>
#include <vector>

#include "bench_layer.hpp"
#include "conclave/layer.hpp"

namespace conclave::cli {

/// How many copies of weights of `bytes` take turns, so that what one call leaves in L2 does not serve the next.
int weight_copies(std::int64_t bytes);

/// Calls rotate through the copies and the draws. `hidden_states` [M, H] and the draws are on the host, as is `output`
/// [M, H], which receives the result of the last call.
Timing time_on_gpu(std::vector<MoeLayer>& copies, const ConstTensorView& hidden_states, const Draws& draws,
                   const TimingOptions& options, const TensorView& output, Stream stream);

}  // namespace conclave::cli
