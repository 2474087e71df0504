// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// When each stage of a run began and ended: what a timeline is drawn from. Nobody listens, nothing is measured.
#pragma once

#include <chrono>

namespace conclave {

struct StageSpan {
  const char* stage = "";  ///< A literal: "route", "prepare", "dispatch", "experts", "finalize", "combine", "shared".
  int micro_batch = 0;
  bool in_flight = false;  ///< Data under way, not work: it may overlap spans of any micro-batch.
  std::chrono::steady_clock::time_point begin{}, end{};
};

/// Told from the thread that runs the layer. Must not throw, and must not allocate if run() is not to.
class StageObserver {
 public:
  virtual ~StageObserver() = default;
  virtual void on_span(const StageSpan& span) noexcept = 0;
};

}  // namespace conclave
