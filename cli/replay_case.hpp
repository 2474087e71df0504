// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: one case file. Out: one row for each combination of parts that it was run through, with a verdict.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compare.hpp"
#include "conclave/case_file.hpp"
#include "conclave/registry.hpp"
#include "layer_run.hpp"
#include "machine.hpp"
#include "ranks.hpp"

namespace conclave::cli {

struct ReplayOptions {
  std::string experts = "all", prepare = "all";  ///< A part's registry name, or all.
  bool checked = false;
  const Ranks* ranks = nullptr;  ///< Null: one rank, without a word of others.
  Placement placement = Placement::linear;
};

enum class Outcome {
  passed,
  failed,
  refused,  ///< The parts do not support the problem: no verdict.
};

struct ReplayRow {
  std::string router, prepare, experts;
  Outcome outcome = Outcome::passed;
  std::optional<Comparison> reference, expected;
  std::string message;  ///< Why it failed or was refused; the message that was expected.
};

struct ReplayReport {
  std::string path;
  std::vector<ReplayRow> rows;
  /// At least one combination gave an answer, and none gave a wrong one.
  bool ok() const;
  /// Some part of this device takes it.
  bool applies() const;
};

/// Never throws Error for the case's sake: what goes wrong becomes a row.
ReplayReport replay_case(const std::string& path, const ReplayOptions& options, const Registry& registry,
                         const Machine& machine);

/// Compares one run with the reference's output (absent: it could not run) and with the case's expected tensors.
/// Fills row.reference, row.expected, and the failure if there is one.
void judge(const Case& value, const LayerResult& result, const std::optional<Tensor>& reference, Executor& executor,
           ReplayRow& row);

}  // namespace conclave::cli
