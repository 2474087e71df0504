// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// (problem, registry, pins) -> the winner of each stage and the reason why every other candidate lost.
#pragma once

#include "conclave/plan.hpp"

namespace conclave {

/// Fills router, prepare_finalize and experts of a plan. A stage without a winner has an empty `chosen`.
struct Selection {
  StagePlan router;
  StagePlan prepare_finalize;
  StagePlan experts;
  bool complete() const noexcept {
    return !router.chosen.empty() && !prepare_finalize.chosen.empty() && !experts.chosen.empty();
  }
};

/// Throws Error(invalid_argument) if a pinned name is not registered, listing those that are.
Selection select(const Problem& problem, const Registry& registry, const PlanOptions& options);

}  // namespace conclave
