// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The times of the layer's stages, each run alone through the public API (--stages).
#pragma once

#include <functional>
#include <map>
#include <optional>

#include "bench_layer.hpp"
#include "conclave/layer.hpp"
#include "conclave/plan.hpp"

namespace conclave::cli {

struct StageTimes {
  std::optional<Timing> router;
  std::optional<Timing> routed;  ///< prepare, experts and finalize, for ids that are known; absent if monolithic
  std::optional<Timing> shared;  ///< The shared expert without its gate; absent if there is none.
};

/// What is timed: the same draws as the whole layer, by number of tokens.
struct StageInput {
  const Plan& plan;
  const Registry& registry;
  std::function<LayerWeights()> weights;
  ConstTensorView hidden_states;  ///< The first M rows are the input of M tokens.
  const std::map<std::int64_t, Draws>& draws;
  TimingOptions timing;
};

/// For each number of tokens in `tokens`. Packs the weights again: call it when no other layer holds them.
std::map<std::int64_t, StageTimes> time_stages(const StageInput& input, const std::vector<std::int64_t>& tokens,
                                               Stream stream);

}  // namespace conclave::cli
