// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// conclave replay: case files through every part that supports them.
#include <algorithm>
#include <memory>
#include <vector>

#include "command.hpp"
#include "error.hpp"
#include "json_out.hpp"
#include "option_set.hpp"
#include "parse.hpp"
#include "progress.hpp"
#include "replay_case.hpp"
#include "table.hpp"

namespace conclave::cli {
namespace {

struct ReplayCommand {
  CommonOptions common;
  ReplayOptions replay;
  std::vector<std::string> cases;
  RankOptions ranks;
  std::string placement = "linear";
};

const char* name_of_outcome(Outcome outcome) {
  return outcome == Outcome::passed ? "ok" : outcome == Outcome::failed ? "FAILED" : "refused";
}

std::string error_text(const std::optional<Comparison>& comparison) {
  return comparison ? fmt::format("{:.3e}", comparison->relative) : "-";
}

void print_report(const ReplayReport& report) {
  Table table({"experts", "prepare/finalize", "router", "to reference", "to expected", "verdict", ""}, "lllrrll");
  for (const ReplayRow& row : report.rows)
    table.add({row.experts, row.prepare, row.router, error_text(row.reference), error_text(row.expected),
               name_of_outcome(row.outcome), row.message});
  print_text(fmt::format("{}: {}\n", report.path, report.ok() ? "ok" : "FAILED"));
  if (!table.empty()) print_text(table.str());
}

Json errors_json(const std::optional<Comparison>& c) {
  return c ? Json{{"relative_error", c->relative}, {"max_abs_error", c->max_abs}} : Json(nullptr);
}

Json report_json(const ReplayReport& report) {
  Json rows = Json::array();
  for (const ReplayRow& row : report.rows)
    rows.push_back({{"experts", row.experts},
                    {"prepare_finalize", row.prepare},
                    {"router", row.router},
                    {"verdict", name_of_outcome(row.outcome)},
                    {"reference", errors_json(row.reference)},
                    {"expected", errors_json(row.expected)},
                    {"message", row.message}});
  return {{"case", report.path}, {"ok", report.ok()}, {"rows", rows}};
}

int run_replay(const ReplayCommand& o) {
  const Ranks ranks(o.ranks);
  const Machine machine = open_machine(o.common, Ceilings::cached);
  const Registry registry = builtin_registry();
  ReplayOptions options = o.replay;
  if (o.ranks.comm != "self") options.ranks = &ranks;
  options.placement = placement_from_name(o.placement);
  if (options.experts != "all") options.experts = part_name("--experts", registry.experts, options.experts);
  if (options.prepare != "all") options.prepare = part_name("--prepare", registry.prepare_finalizes, options.prepare);
  std::vector<ReplayReport> reports;
  {
    Progress progress;
    for (const std::string& path : o.cases) {
      if (ranks.is_root()) progress.show(path);
      reports.push_back(replay_case(path, options, registry, machine));
    }
  }
  // Parts of a GPU do not cover every problem yet: what none of them takes is not a wrong answer.
  std::int64_t others = 0;
  if (machine.gpu)
    others = static_cast<std::int64_t>(std::erase_if(reports, [](const ReplayReport& r) { return !r.applies(); }));
  const bool ok = std::all_of(reports.begin(), reports.end(), [](const ReplayReport& r) { return r.ok(); });
  if (!ranks.is_root()) return ok ? kOk : kWrong;
  if (o.common.json) {
    Json cases = Json::array();
    for (const ReplayReport& report : reports) cases.push_back(report_json(report));
    print_json({{"ok", ok}, {"cases", cases}});
    return ok ? kOk : kWrong;
  }
  for (const ReplayReport& report : reports) print_report(report);
  const auto good = std::count_if(reports.begin(), reports.end(), [](const ReplayReport& r) { return r.ok(); });
  print_text(fmt::format("{} of {} cases ok\n", good, reports.size()));
  if (others > 0)
    print_text(fmt::format("{} cases that no part of {} takes\n", others, to_string(machine.facts.device)));
  return ok ? kOk : kWrong;
}

}  // namespace

Command add_replay(CLI::App& app) {
  auto o = std::make_shared<ReplayCommand>();
  OptionSet set(app, "replay", "Run case files through every part that supports them",
                "Examples: conclave replay tests/cases/*.safetensors --checked\n"
                "          conclave replay tests/cases/*.safetensors --ranks 4 --comm sim\n"
                "          mpirun -n 4 conclave replay tests/cases/*.safetensors --comm mpi\n"
                "With several ranks the tokens of a case are spread over them, unevenly; a case with an expert map is\n"
                "one rank's share already and runs as it is.");
  set.add("CASE", o->cases, "Case files", Need::required)
      .add("--experts", o->replay.experts, "This experts part, or all")
      .add("--prepare", o->replay.prepare, "This prepare/finalize part, or all")
      .flag("--checked", o->replay.checked, "Ids out of range are errors instead of empty slots")
      .add("--placement", o->placement, "Which rank holds which expert: linear or round_robin");
  add_rank_options(set, o->ranks);
  add_common_options(set, o->common);
  return {set.app(), [o] { return run_replay(*o); }};
}

}  // namespace conclave::cli
