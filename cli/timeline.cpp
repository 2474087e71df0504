// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Spans -> JSON. Times in microseconds, as the format wants them.
#include "timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>

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

/// Names of the rows that occur, then the spans, in microseconds since the clock began.
Json events_of(const std::vector<StageSpan>& spans, int rank) {
  Json events = Json::array();
  std::set<int> rows;
  for (const StageSpan& span : spans) rows.insert(row_of(span));
  for (const int row : rows) events.push_back(row_name(rank, row));
  for (const StageSpan& span : spans)
    events.push_back({{"name", span.stage},
                      {"cat", span.in_flight ? "data" : "work"},
                      {"ph", "X"},
                      {"pid", rank},
                      {"tid", row_of(span)},
                      {"ts", micros(span.begin.time_since_epoch())},
                      {"dur", micros(span.end - span.begin)}});
  return events;
}

/// Times count from the first.
std::string trace_of(Json events) {
  double first = std::numeric_limits<double>::infinity();
  for (const Json& event : events)
    if (event.contains("ts")) first = std::min(first, event["ts"].get<double>());
  for (Json& event : events)
    if (event.contains("ts")) event["ts"] = event["ts"].get<double>() - first;
  return Json{{"displayTimeUnit", "ns"}, {"traceEvents", std::move(events)}}.dump(1) + "\n";
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) throw Error(ErrorKind::io, path + ": cannot be written");
}

}  // namespace

std::string Timeline::json(int rank) const {
  return trace_of(events_of(spans_, rank));
}

std::string Timeline::spans_text(int rank) const {
  return events_of(spans_, rank).dump() + "\n";
}

void write_timelines(const std::string& path, const std::string& spans_of_ranks) {
  Json events = Json::array();
  std::istringstream lines(spans_of_ranks);
  for (std::string line; std::getline(lines, line);)
    for (Json& event : Json::parse(line)) events.push_back(std::move(event));
  write_file(path, trace_of(std::move(events)));
}

void write_timeline(const std::string& path, const Timeline& timeline, int rank) {
  write_file(path, timeline.json(rank));
}

}  // namespace conclave::cli
