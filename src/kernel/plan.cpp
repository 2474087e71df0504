// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Problem + registry -> Plan: select, build the winners once to measure their scratch, count the cost.
#include "conclave/plan.hpp"

#include "base/error.hpp"
#include "kernel/compose.hpp"
#include "kernel/lower.hpp"
#include "kernel/replicas.hpp"
#include "kernel/report.hpp"
#include "kernel/select.hpp"

namespace conclave {
namespace {

void fill_costs(Plan& plan, const Composition& parts, const std::vector<std::int64_t>& tokens) {
  for (std::int64_t num_tokens : tokens) {
    if (num_tokens > plan.problem.moe.max_num_tokens) continue;
    plan.costs.push_back(cost_of(plan.problem, num_tokens));
    const Experts& experts = parts.routed->experts();
    const Forecast forecast = experts.forecast(num_tokens);
    plan.costs.back().tiles = experts.describe(num_tokens);
    plan.costs.back().launches = forecast.launches;
    plan.costs.back().forecast_seconds = forecast.seconds;
  }
}

/// The shared expert is planned with the same registry, but not with the pins: a pinned part of the routed experts may
/// well refuse a problem of one expert.
std::shared_ptr<const Plan> plan_shared(const Problem& problem, const Registry& registry) {
  const std::optional<Problem> shared = shared_problem(problem);
  if (!shared) return nullptr;
  PlanOptions options;
  options.report_tokens.clear();
  return std::make_shared<const Plan>(plan(*shared, registry, options));
}

}  // namespace

Plan plan(const Problem& problem, const Registry& registry, const PlanOptions& options) {
  validate(problem.moe);
  validate_replicas(problem);
  Plan result;
  result.problem = problem;
  Selection selection = select(problem, registry, options);
  const bool complete = selection.complete();
  result.router = std::move(selection.router);
  result.prepare_finalize = std::move(selection.prepare_finalize);
  result.experts = std::move(selection.experts);
  if (!complete) throw Error(ErrorKind::unsupported, refusal_report(result));

  result.shared = plan_shared(problem, registry);
  const Composition parts = compose(result, registry);
  Arena arena = Arena::measuring(problem.device.device);
  plan_layer_scratch(problem, parts, arena, problem.moe.max_num_tokens);
  result.workspace_bytes = arena.peak();
  fill_costs(result, parts, options.report_tokens);
  result.owners = owners_of(result, *parts.routed);
  return result;
}

}  // namespace conclave
