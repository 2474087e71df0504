// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Spans -> JSON. Times in microseconds, as the format wants them.
#include "timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "conclave/error.hpp"
#include "json_out.hpp"

namespace conclave::cli {
namespace {

/// Rows are sorted by number: the data of a micro-batch is below its work.
int row_of(const StageSpan& span) {
  return 2 * span.micro_batch + (span.in_flight ? 1 : 0);
}

double micros(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

Json row_name(int rank, int row) {
  return {{"name", "thread_name"},
          {"ph", "M"},
          {"pid", rank},
          {"tid", row},
          {"args", {{"name", fmt::format("micro-batch {}{}", row / 2, row % 2 == 1 ? ": data under way" : "")}}}};
}

}  // namespace

std::string Timeline::json(int rank) const {
  Json events = Json::array();
  std::set<int> rows;
  for (const StageSpan& span : spans_) rows.insert(row_of(span));
  for (const int row : rows) events.push_back(row_name(rank, row));
  const auto first = std::min_element(spans_.begin(), spans_.end(),
                                      [](const StageSpan& a, const StageSpan& b) { return a.begin < b.begin; });
  for (const StageSpan& span : spans_)
    events.push_back({{"name", span.stage},
                      {"cat", span.in_flight ? "data" : "work"},
                      {"ph", "X"},
                      {"pid", rank},
                      {"tid", row_of(span)},
                      {"ts", micros(span.begin - first->begin)},
                      {"dur", micros(span.end - span.begin)}});
  return Json{{"displayTimeUnit", "ns"}, {"traceEvents", events}}.dump(1) + "\n";
}

void write_timeline(const std::string& path, const Timeline& timeline, int rank) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << timeline.json(rank);
  file.close();
  if (!file) throw Error(ErrorKind::io, path + ": cannot be written");
}

}  // namespace conclave::cli
