// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// conclave verify: the conformance matrix, its failures in full, and the mutations that were caught.
#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "command.hpp"
#include "conclave/verify.hpp"
#include "error.hpp"
#include "json_out.hpp"
#include "machine.hpp"
#include "option_set.hpp"
#include "progress.hpp"
#include "table.hpp"

namespace conclave::cli {
namespace {

struct VerifyCommand {
  CommonOptions common;
  VerifyOptions verify;
};

struct Count {
  std::int64_t passed = 0, failed = 0, refused = 0;
};

/// "mutation:swapped_gate_up" belongs into the column "mutation".
std::string column_of(const std::string& check) {
  return check.substr(0, check.find(':'));
}

template <class T>
void add_once(std::vector<T>& list, const T& value) {
  if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
}

std::string cell(const Count& count) {
  if (count.passed + count.failed == 0) return count.refused == 0 ? "" : fmt::format("{} refused", count.refused);
  std::string text = std::to_string(count.passed);
  if (count.failed > 0) text += fmt::format(", {} FAILED", count.failed);
  return text;
}

void print_matrix(const VerifyReport& report) {
  std::vector<std::string> parts, columns;
  std::map<std::pair<std::string, std::string>, Count> counts;
  for (const VerifyRow& row : report.rows) {
    const std::string column = column_of(row.check);
    add_once(parts, row.part);
    add_once(columns, column);
    Count& count = counts[{row.part, column}];
    (row.verdict == Verdict::passed ? count.passed : row.verdict == Verdict::failed ? count.failed : count.refused)++;
  }
  std::vector<std::string> header = {"part"};
  header.insert(header.end(), columns.begin(), columns.end());
  std::string alignment(header.size(), 'r');
  alignment[0] = 'l';
  Table table(header, alignment);
  for (const std::string& part : parts) {
    std::vector<std::string> row = {part};
    for (const std::string& column : columns) row.push_back(cell(counts[{part, column}]));
    table.add(row);
  }
  print_text(table.str());
}

void print_failures(const VerifyReport& report, std::uint64_t seed) {
  for (const VerifyRow& row : report.rows)
    if (row.verdict == Verdict::failed)
      print_text(fmt::format("FAILED {} {}\n  problem: {}\n  seed: {}\n  {}\n", row.part, row.check, row.problem, seed,
                             row.message));
}

std::string_view verdict_name(Verdict verdict) {
  return verdict == Verdict::passed ? "passed" : verdict == Verdict::failed ? "failed" : "refused";
}

Json report_json(const VerifyReport& report, std::uint64_t seed) {
  Json rows = Json::array();
  for (const VerifyRow& row : report.rows)
    rows.push_back({{"part", row.part},
                    {"problem", row.problem},
                    {"check", row.check},
                    {"verdict", verdict_name(row.verdict)},
                    {"error", row.error},
                    {"message", row.message}});
  return {{"ok", report.ok()},
          {"seed", seed},
          {"passed", report.passed},
          {"failed", report.failed},
          {"refused", report.refused},
          {"mutations", report.mutations},
          {"mutations_caught", report.mutations_caught},
          {"rows", rows}};
}

int run_verify(const VerifyCommand& o) {
  const Machine machine = open_machine(o.common, Ceilings::cached);
  VerifyReport report;
  {
    Progress progress;
    VerifyOptions options = o.verify;
    std::int64_t done = 0;
    options.progress = [&](const std::string& label) { progress.show(fmt::format("{} {}", ++done, label)); };
    report = verify(builtin_registry(), machine.facts, machine.stream, options);
  }
  if (report.rows.empty()) bad_input("--filter: nothing matches \"{}\"", o.verify.filter);
  if (o.common.json) {
    print_json(report_json(report, o.verify.seed));
    return report.ok() ? kOk : kWrong;
  }
  print_matrix(report);
  print_failures(report, o.verify.seed);
  print_text(fmt::format("\n{} passed, {} failed, {} refused by supports()\nmutations caught: {}/{}\n", report.passed,
                         report.failed, report.refused, report.mutations_caught, report.mutations));
  return report.ok() ? kOk : kWrong;
}

}  // namespace

Command add_verify(CLI::App& app) {
  auto o = std::make_shared<VerifyCommand>();
  OptionSet set(app, "verify", "Every registered combination against the reference",
                "Examples: conclave verify --quick --filter experts/reference\n"
                "          conclave verify --device cuda");
  set.flag("--quick", o->verify.quick, "A tenth of the grid")
      .add("--filter", o->verify.filter, "Only combinations whose label contains this text")
      .add("--seed", o->verify.seed, "Of every random tensor");
  add_common_options(set, o->common);
  return {set.app(), [o] { return run_verify(*o); }};
}

}  // namespace conclave::cli
