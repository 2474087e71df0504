// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the options that describe a problem (MODEL or --shape, formats, ranks). Out: a Problem for this machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "conclave/checkpoint.hpp"
#include "conclave/config.hpp"
#include "machine.hpp"

namespace conclave::cli {

struct ProblemOptions {
  std::string model, block, shape;
  std::string dtype, weights, activations, activation, routing;
  std::int64_t num_experts = 0;  ///< 0: as the shape says.
  std::int64_t tp = 1, dp = 1, ep = 1;
  std::string all2all = "none";
};

/// MODEL, --block, --shape, --num-experts, --dtype, --weights, --activations, --activation.
void add_problem_options(OptionSet& options, ProblemOptions& problem);
/// --tp, --dp, --ep, --all2all.
void add_parallel_options(OptionSet& options, ProblemOptions& problem);

struct SelectedProblem {
  Problem problem;
  std::string label;                     ///< "mixtral" or "data/tiny-moe model.layers.0.mlp"
  std::optional<Checkpoint> checkpoint;  ///< MODEL
  std::string block;                     ///< MODEL
};

/// Throws Error unless exactly one of MODEL and --shape is given, or a name or size is not legal.
SelectedProblem select_problem(const ProblemOptions& options, const Machine& machine);

}  // namespace conclave::cli
