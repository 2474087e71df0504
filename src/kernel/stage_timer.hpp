// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: an observer or none, and a stage. Out: a span from construction to end() or destruction.
#pragma once

#include <utility>

#include "conclave/micro_batches.hpp"
#include "conclave/trace.hpp"

namespace conclave::kernel {

class StageTimer {
 public:
  StageTimer(StageObserver* observer, const char* stage, bool in_flight = false) noexcept : observer_(observer) {
    if (observer_ != nullptr)
      span_ = {stage, micro_batch::current_id(), in_flight, std::chrono::steady_clock::now(), {}};
  }
  ~StageTimer() { end(); }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

  /// The first call ends the span; from whatever micro-batch, it belongs to the one that began it.
  void end() noexcept {
    StageObserver* observer = std::exchange(observer_, nullptr);
    if (observer == nullptr) return;
    span_.end = std::chrono::steady_clock::now();
    observer->on_span(span_);
  }

 private:
  StageObserver* observer_;
  StageSpan span_;
};

}  // namespace conclave::kernel
