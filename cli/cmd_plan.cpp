// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// conclave plan: what would run and why, or why nothing fits.
#include <algorithm>
#include <memory>

#include "command.hpp"
#include "conclave/plan.hpp"
#include "error.hpp"
#include "json_out.hpp"
#include "layer_run.hpp"
#include "machine.hpp"
#include "option_set.hpp"
#include "parse.hpp"
#include "plan_matrix.hpp"
#include "problem_options.hpp"

namespace conclave::cli {
namespace {

struct PlanCommand {
  CommonOptions common;
  ProblemOptions problem;
  std::string tokens, router, prepare, experts;
  bool matrix = false;
};

template <class Part>
std::string optional_part(const char* option, const PartList<Part>& list, const std::string& text) {
  return text.empty() ? std::string() : part_name(option, list, text);
}

PlanOptions plan_options(const PlanCommand& o, const Registry& registry) {
  PlanOptions options;
  options.router = optional_part("--router", registry.routers, o.router);
  options.prepare_finalize = optional_part("--prepare", registry.prepare_finalizes, o.prepare);
  options.experts = optional_part("--experts", registry.experts, o.experts);
  if (!o.tokens.empty()) options.report_tokens = parse_counts("--tokens", o.tokens);
  return options;
}

template <class Part>
Json refusals(const PartList<Part>& list, const std::string& report) {
  Json candidates = Json::array();
  for (const auto& entry : list.entries()) {
    const std::string reason = refusal_of(report, entry.name);
    candidates.push_back({{"name", entry.name}, {"reason", reason}});
  }
  return candidates;
}

int print_refusal(const PlanCommand& o, const Problem& problem, const Registry& registry, const std::string& report) {
  if (!o.common.json) {
    print_text(report);
    return kWrong;
  }
  print_json({{"fits", false},
              {"moe", to_json(problem.moe)},
              {"quant", to_json(problem.quant)},
              {"router", {{"candidates", refusals(registry.routers, report)}}},
              {"prepare_finalize", {{"candidates", refusals(registry.prepare_finalizes, report)}}},
              {"experts", {{"candidates", refusals(registry.experts, report)}}},
              {"report", report}});
  return kWrong;
}

int run_plan(const PlanCommand& o) {
  if (o.matrix) {
    const std::string page = support_matrix(builtin_registry());
    if (o.common.json) {
      print_json({{"matrix", page}});
    } else {
      print_text(page);
    }
    return kOk;
  }
  const Machine machine = open_machine(o.common, Ceilings::cached);
  const Registry registry = builtin_registry();
  Problem problem = select_problem(o.problem, machine).problem;
  const PlanOptions options = plan_options(o, registry);
  if (!o.tokens.empty() && !options.report_tokens.empty())
    problem.moe.max_num_tokens = *std::max_element(options.report_tokens.begin(), options.report_tokens.end());
  const Variant variant = plan_variant(problem, problem.moe.dtype, registry, options);
  if (!variant.plan) return print_refusal(o, problem, registry, variant.report);
  if (o.common.json) {
    Json json = {{"fits", true}, {"convert_weights", variant.convert_weights}};
    json.update(to_json(*variant.plan));
    json["report"] = variant.plan->report();
    print_json(json);
    return kOk;
  }
  print_text(variant.plan->report());
  if (variant.convert_weights)
    print_text(fmt::format("weights: converted to {} when they are packed\n",
                           name_of(variant.plan->problem.moe.weight_dtype)));
  if (machine.facts.bytes_per_second == 0)
    print_text("ceilings: not measured yet, so no times; `conclave info` measures them once\n");
  return kOk;
}

}  // namespace

Command add_plan(CLI::App& app) {
  auto o = std::make_shared<PlanCommand>();
  OptionSet set(app, "plan", "Which parts would run a problem, and why; its cost and floor",
                "Examples: conclave plan data/tiny-moe\n"
                "          conclave plan --shape deepseek-v3 --weights fp8_block128 --activations fp8_block128");
  add_problem_options(set, o->problem);
  add_parallel_options(set, o->problem);
  set.add("--routing", o->problem.routing, "Routing method instead of the model's")
      .add("--tokens", o->tokens, "Token counts to report, separated by commas")
      .add("--router", o->router, "This router part")
      .add("--prepare", o->prepare, "This prepare/finalize part")
      .add("--experts", o->experts, "This experts part")
      .flag("--matrix", o->matrix, "Print what every part takes instead, as a Markdown page (docs/matrix.md)");
  add_common_options(set, o->common);
  return {set.app(), [o] { return run_plan(*o); }};
}

}  // namespace conclave::cli
