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

/// Takes the memory of sum_rows_over_ranks().
void plan_rank_sum(Arena& arena, std::int64_t num_ranks, std::int64_t num_tokens, std::int64_t width);

/// rows [M, W] := their sum over the ranks, in rank order, in f32, rounded once: the same bits on every rank.
void sum_rows_over_ranks(Communicator& communicator, const TensorView& rows, Arena& arena, Stream stream, int channel);

}  // namespace conclave
