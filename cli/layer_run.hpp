// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a problem, weights, an input, and which parts to use. Out: what the layer computes, or why a part refuses.
#pragma once

#include <optional>
#include <string>

#include "conclave/layer.hpp"
#include "conclave/plan.hpp"
#include "conclave/registry.hpp"

namespace conclave::cli {

/// A planned way to run a problem, or the reason why there is none.
struct Variant {
  std::optional<Plan> plan;
  /// The part does not take the weights in the type in which they are stored: convert them to the compute type.
  bool convert_weights = false;
  std::string refusal;  ///< One line, if there is no plan.
  std::string report;   ///< All of it, if there is no plan.
};

/// Plans `problem` in compute type `dtype`. With options.experts set, that part gets the weights as they are stored if
/// it takes them, else converted; without, the part that is earlier in the list wins.
Variant plan_variant(Problem problem, DType dtype, const Registry& registry, const PlanOptions& options);

/// The reason that a report of refusals gives for one part; empty if it does not name it as refused.
std::string refusal_of(const std::string& report, const std::string& part);

/// The weights as `variant` wants them, never to be given up, so that they can be packed again.
LayerWeights weights_for(const Variant& variant, const LayerWeights& weights, Executor& executor);

struct LayerResult {
  Tensor output;        ///< [M, H] in moe.dtype
  Tensor topk_ids;      ///< i32 [M, num_slots]
  Tensor topk_weights;  ///< f32 [M, num_slots]
};

/// Packs, and runs once on the stream's device; inputs and results are on the host. The output is poisoned with NaN
/// first: a part that leaves an element unwritten is caught.
LayerResult run_layer(const Plan& plan, const Registry& registry, const LayerWeights& weights, LayerInput input,
                      Stream stream);

/// A tensor whose bytes are all 0xFF: NaN in every float type, -1 in every signed integer type.
Tensor poisoned(DType dtype, std::initializer_list<std::int64_t> shape);

}  // namespace conclave::cli
