// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a problem and its weights as a whole. Out: times of the layer over ranks, each with its experts and its share of
// the tokens; from the first rank that starts to the last that ends.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bench_layer.hpp"
#include "conclave/plan.hpp"
#include "ranks.hpp"

namespace conclave::cli {

struct RankBench {
  const Ranks& ranks;
  const Registry& registry;
  Problem problem;  ///< Of the whole; max_num_tokens the largest of `tokens`.
  PlanOptions pins;
  LayerWeights weights;
  ConstTensorView hidden_states;  ///< The first M rows are the input of M tokens.
  const std::map<std::int64_t, Draws>& draws;
  std::vector<std::int64_t> tokens;
  TimingOptions timing;
  int micro_batches = 1;
  std::string trace;  ///< File for a timeline of all ranks with tokens.front(); empty: none.
};

struct RankTimes {
  std::string experts, prepare;  ///< What the plan chose.
  std::map<std::int64_t, Timing> times;
  bool finite = true;  ///< Of every output.
};

/// The same on every process of an MPI run.
RankTimes time_over_ranks(const RankBench& bench, Stream stream);

}  // namespace conclave::cli
