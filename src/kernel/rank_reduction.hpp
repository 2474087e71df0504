// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The sum over ranks where finalize leaves it open: tensor parallelism, and experts spread over ranks that all see the
// same tokens.
#pragma once

#include "conclave/comm.hpp"
#include "conclave/config.hpp"
#include "conclave/stream.hpp"
#include "conclave/workspace.hpp"

namespace conclave {

/// How many ranks' partial outputs make the routed output, if finalize does not sum them; 1 if it does.
std::int64_t ranks_to_sum(const ParallelConfig& parallel, bool output_is_reduced) noexcept;

struct RankSum {
  TensorView rows;     ///< f32 [M, W]: this rank's part, which nobody has rounded
  TensorView scratch;  ///< f32
};
RankSum take_rank_sum(Arena& arena, std::int64_t num_ranks, std::int64_t num_tokens, std::int64_t width);

/// output [M, W] := the sum of sum.rows over the ranks, in rank order, rounded once: the same bits on every rank.
void sum_rows_over_ranks(Communicator& communicator, const RankSum& sum, const TensorView& output, Stream stream,
                         int channel);

}  // namespace conclave
