// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: parts and a problem. Out: its result over simulated ranks, each with experts, and where they are exchanged
// tokens, of its own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "conclave/comm.hpp"
#include "conclave/registry.hpp"
#include "verify/layer_data.hpp"
#include "verify/problem.hpp"

namespace conclave::verify_detail {

/// How a prepare/finalize is used over ranks: by the exchange that it does, or, where it does none, with experts spread
/// over ranks that all see every token. Nullopt: not at all.
std::optional<ParallelConfig> parallel_over(const Entry<PrepareFinalize>& ends, const Problem& problem, int num_ranks,
                                            int rank);

/// Rows of each rank, [ranks + 1]: uneven, and none for one rank where there are three or more.
std::vector<std::int64_t> split_tokens(std::int64_t num_tokens, int num_ranks);

/// What goes wrong in a run over ranks beyond what a changed problem can say.
struct RankMistake {
  /// Experts lie as this says, while the transport believes what the problem says.
  std::optional<Placement> placement_of_weights;
};

/// Kernels that exchange tokens; the joined output [M, H].
Tensor run_kernels_over_ranks(const Entry<Experts>& experts, const Entry<PrepareFinalize>& ends,
                              const ProblemData& data, int num_ranks, const RankMistake& mistake = {});

struct LayerRankOptions {
  int micro_batches = 1;
  bool rows_of_sibling = false;  ///< A mistake: the second micro-batch gets the rows of the first.
};

/// Whole layers, with a communicator: the joined output, or rank 0's where all ranks see every token.
Tensor run_layers_over_ranks(const Registry& registry, const std::string& experts, const Entry<PrepareFinalize>& ends,
                             const LayerData& data, int num_ranks, const LayerRankOptions& options = {});

struct TailMistakes {
  bool no_residual = false;
  bool shared_on_every_rank = false;
  bool scale_twice = false;
  int dropped_rank = -1;
};

/// run_open() on every rank and a tail that sums over them: normed rows, f32 [M, H]. `weight` [H].
Tensor run_tails_over_ranks(const Registry& registry, const std::string& experts, const Entry<PrepareFinalize>& ends,
                            const LayerData& data, int num_ranks, const ConstTensorView& weight,
                            const TailMistakes& mistakes = {});

}  // namespace conclave::verify_detail
