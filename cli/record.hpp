// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a problem as it was run. Out: a case file (--record), with router logits in place of the router's weight.
#pragma once

#include <optional>
#include <string>

#include "conclave/case_file.hpp"
#include "conclave/plan.hpp"

namespace conclave::cli {

struct Recording {
  const Plan& plan;
  const LayerWeights& weights;
  ConstTensorView hidden_states;  ///< [M, H] in moe.dtype
  std::optional<ConstTensorView> router_logits;
  std::optional<ConstTensorView> expected, expected_topk_ids;
  std::optional<CaseTolerance> tolerance;
  std::string note;
};

void record_case(const std::string& path, const Recording& recording, Stream stream);

}  // namespace conclave::cli
