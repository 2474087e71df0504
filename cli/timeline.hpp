// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: spans of stages. Out: a file in Chrome's trace format (chrome://tracing, Perfetto): a row for each micro-batch's
// work, and one for its data under way, so that overlap is what lies above one another.
#pragma once

#include <string>
#include <vector>

#include "conclave/trace.hpp"

namespace conclave::cli {

class Timeline final : public StageObserver {
 public:
  Timeline() { spans_.reserve(kMost); }
  /// Later spans than the first kMost are dropped: run() must not allocate.
  void on_span(const StageSpan& span) noexcept override {
    if (spans_.size() < kMost) spans_.push_back(span);
  }
  const std::vector<StageSpan>& spans() const noexcept { return spans_; }
  void clear() noexcept { spans_.clear(); }

  /// Times count from the first span. `rank` is the process of the trace.
  std::string json(int rank) const;
  /// For write_timelines(): a line of JSON, with times of the machine's clock.
  std::string spans_text(int rank) const;

 private:
  static constexpr std::size_t kMost = 65536;
  std::vector<StageSpan> spans_;
};

/// The spans_text() of several ranks of one machine, one behind the other. Throws Error(io) naming the file.
void write_timelines(const std::string& path, const std::string& spans_of_ranks);

/// Throws Error(io) naming the file.
void write_timeline(const std::string& path, const Timeline& timeline, int rank);

}  // namespace conclave::cli
