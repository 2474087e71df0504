// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Problem -> decision, before the first token: the winner of each stage, why every other candidate lost, how much
// memory run() needs, and how fast it can be. Deterministic; depends on nothing but its arguments.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "conclave/config.hpp"
#include "conclave/registry.hpp"

namespace conclave {

/// Pins a stage to a part by name; empty means choose. Unknown names and parts that refuse throw Error with the report.
struct PlanOptions {
  std::string router;
  std::string prepare_finalize;
  std::string experts;
  /// Token counts for which cost and tiles are reported; each at most moe.max_num_tokens.
  std::vector<std::int64_t> report_tokens = {1, 8, 64, 512};
};

struct Candidate {
  std::string name;
  bool fits = false;
  std::string reason;  ///< Why not; for a part that fits but lost: "after the winner in the list", or what slows it.
};

struct StagePlan {
  std::string chosen;
  std::vector<Candidate> candidates;  ///< In the order of the list.
};

/// The floor of one call: no kernel can move fewer bytes or do fewer operations. Uniform routing is assumed.
struct CostPoint {
  std::int64_t num_tokens = 0;
  double active_experts = 0;    ///< Expected number of experts with at least one token.
  double weight_bytes = 0;      ///< Of active experts, router and shared experts.
  double activation_bytes = 0;  ///< Input and output of the layer.
  double flops = 0;
  double seconds = 0;  ///< max(bytes / bandwidth, flops / peak); 0 if the ceilings were not measured.
  bool memory_bound = false;
  std::string tiles;  ///< Experts::describe.
  int launches = 0;   ///< Experts::forecast, for what a kernel chosen can do where the floor is what any could.
  double forecast_seconds = 0;
};
/// The floor for any problem, planned or not.
CostPoint cost_of(const Problem& problem, std::int64_t num_tokens);

struct Plan {
  Problem problem;
  StagePlan router;
  StagePlan prepare_finalize;
  StagePlan experts;
  std::shared_ptr<const Plan> shared;  ///< The shared expert, planned as a problem of one expert; null if none.
  std::int64_t workspace_bytes = 0;
  std::vector<CostPoint> costs;

  /// Who applies what, one line each: router weight, scaling factor, biases, shared weight, zero experts.
  std::vector<std::string> owners;
  /// Several lines for a person: everything above.
  std::string report() const;
};

/// Throws Error(unsupported) whose message is the report of all refusals if a stage has no part that fits.
Plan plan(const Problem& problem, const Registry& registry, const PlanOptions& options = {});

}  // namespace conclave
