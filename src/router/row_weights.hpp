// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Steps 4 to 7 of the rule: the weights of chosen ids, renormalised and scaled, and the extra slots.
#pragma once

#include "router/rule.hpp"

namespace conclave::router {

/// Step 4. Ids outside [0, E) are empty slots of weight 0. `scratch` holds E floats.
void weigh_chosen(const Rule& rule, const Row& row, const std::int32_t* ids, float* weights, float* scratch) noexcept;

/// Steps 5 and 6, in the order of the slots. Where the divisor is 0 every weight becomes 0.
void renormalize_and_scale(const Rule& rule, float* weights) noexcept;

/// Step 7: ids E, E + 1, ... behind the top_k. The factor is for routed experts only.
void append_shared(const Rule& rule, std::int32_t* ids, float* weights) noexcept;

}  // namespace conclave::router
