// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: uniform, zipf:A or trace:FILE. Out: router logits that make the router choose experts so, another draw for each
// iteration, all made before the clock starts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "conclave/config.hpp"
#include "conclave/registry.hpp"

namespace conclave::cli {

struct RoutingSpec {
  enum class Kind { uniform, zipf, trace } kind = Kind::uniform;
  double exponent = 1;
  std::vector<std::int32_t> ids;  ///< trace: [num_rows, top_k]
  std::string text;
};

/// `block`: whose "<block>.topk_ids" to take from a trace; empty: the file's first tensor of that kind.
RoutingSpec parse_routing(const std::string& text, const MoeConfig& config, const std::string& block);

/// What one draw costs, counted from the ids that the router chose.
struct Load {
  std::int64_t active_experts = 0;  ///< With weights, and at least one token.
  std::int64_t rows = 0;            ///< Pairs of a token and an expert with weights.
  std::int64_t busiest = 0;         ///< Rows of the busiest expert.
};

struct Draws {
  Tensor logits;   ///< f32 [draws, M, E]
  Tensor ids;      ///< i32 [draws, M, num_slots], chosen by the router
  Tensor weights;  ///< f32 [draws, M, num_slots]
  std::vector<Load> loads;
  std::int64_t size() const noexcept { return static_cast<std::int64_t>(loads.size()); }
};

Draws make_draws(const RoutingSpec& spec, const Problem& problem, const Router& router,
                 const std::optional<ConstTensorView>& e_score_correction_bias, std::int64_t num_tokens, Stream stream);

}  // namespace conclave::cli
