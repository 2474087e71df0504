// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a problem, token counts, parts. Out: a measured point for each part and token count.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench_layer.hpp"
#include "bench_stages.hpp"
#include "layer_run.hpp"
#include "machine.hpp"
#include "problem_options.hpp"
#include "progress.hpp"
#include "ranks.hpp"

namespace conclave::cli {

struct BenchOptions {
  std::vector<std::int64_t> tokens;
  std::vector<std::string> parts;  ///< Registry names of experts; an empty one: what plan chooses.
  std::string routing = "uniform";
  TimingOptions timing;
  bool stages = false;
  std::string record;
  int micro_batches = 1;                        ///< Parts of the batch that run interleaved.
  std::string trace;                            ///< File for the timeline of one run of the first point.
  const Ranks* ranks = nullptr;                 ///< Where the layer runs over several, or over mpirun's.
  std::string prepare = "dispatch/all_to_all";  ///< The prepare/finalize over ranks.
};

struct BenchRow {
  std::int64_t num_tokens = 0;
  std::string experts;
  Point point;
  StageTimes stages;
  double forecast_us = 0;  ///< What the plan expected; 0: the part has no model.
};

struct BenchReport {
  std::vector<BenchRow> rows;      ///< By tokens, then in the order of the parts.
  std::vector<std::string> notes;  ///< What was not run, and what limits the meaning of what was.
  std::string refusals;            ///< The report of the first part that refused.
};

/// The whole layer, router logits to output. Every part sees the same draws.
BenchReport run_bench(const SelectedProblem& selected, const BenchOptions& options, const Registry& registry,
                      const Machine& machine);

}  // namespace conclave::cli
