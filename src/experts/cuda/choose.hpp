// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: sizes of a problem and a token count. Out: tiles of the grouped products. A pure function of numbers, so that
// plans for a GPU are made and tested on machines without one.
#pragma once

#include <cstdint>
#include <string>

#include "experts/cuda/gemm_tile.hpp"

namespace conclave::experts::cuda {

struct GemmProblem {
  std::int64_t num_experts = 0;  ///< That the router can choose.
  std::int64_t top_k = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  bool gated = true;
  int num_multiprocessors = 132;
  bool common_activation = true;  ///< One of those that Epilogue::swiglu covers.
};

struct GemmChoice {
  GemmTile tile;            ///< Of GEMM1.
  GemmTile second;          ///< Of GEMM2: as many tokens, since both share the tile map.
  bool sorts_rows = false;  ///< Hidden states are copied into the order of experts before GEMM1.
  bool operator==(const GemmChoice&) const = default;
};

/// Experts that have rows, for uniform routing.
double active_experts(const GemmProblem& problem, std::int64_t num_tokens);

/// Rows that an expert with any rows has, for uniform routing.
double rows_per_active_expert(const GemmProblem& problem, std::int64_t num_tokens);

GemmChoice choose(const GemmProblem& problem, std::int64_t num_tokens);

/// "128 x 256 tokens x weight rows, gathered": a line of the plan.
std::string to_string(const GemmChoice& choice);

}  // namespace conclave::experts::cuda
