// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: outcomes. Out: rows and counts.
#include "verify/report.hpp"

#include <fmt/format.h>

namespace conclave::verify_detail {

bool Reporter::wants(const std::string& part, const std::string& problem) const {
  return options_.filter.empty() || (part + " " + problem).find(options_.filter) != std::string::npos;
}

void Reporter::refused(const std::string& part, const std::string& problem, const std::string& reason) {
  report_.rows.push_back({part, problem, "supports", Verdict::refused, 0, reason});
  ++report_.refused;
}

void Reporter::add(const std::string& part, const std::string& problem, std::string_view check,
                   const Outcome& outcome) {
  if (!outcome.applies) return;
  VerifyRow row{part, problem, std::string(check), outcome.ok ? Verdict::passed : Verdict::failed, outcome.error, {}};
  if (!outcome.ok) row.message = fmt::format("{} (seed {})", outcome.message, options_.seed);
  report_.rows.push_back(std::move(row));
  ++(outcome.ok ? report_.passed : report_.failed);
}

void Reporter::mutation(const std::string& part, const std::string& problem, std::string_view name,
                        const Outcome& comparison) {
  Outcome outcome;
  outcome.ok = !comparison.ok;
  outcome.error = comparison.error;
  if (!outcome.ok) outcome.message = "the comparison did not notice this mistake";
  ++report_.mutations;
  if (outcome.ok) ++report_.mutations_caught;
  add(part, problem, fmt::format("mutation:{}", name), outcome);
}

void Reporter::finished(const std::string& part, const std::string& problem) const {
  if (options_.progress) options_.progress(part + " " + problem);
}

}  // namespace conclave::verify_detail
