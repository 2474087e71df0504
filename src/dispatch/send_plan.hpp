// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the owner of each pick. Out: which tokens go to which rank: each token once to a rank, however many of its
// experts live there, in token order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "conclave/workspace.hpp"

namespace conclave::dispatch {

struct SendPlan {
  TensorView counts;    ///< i64 [ranks]: rows for each rank
  TensorView position;  ///< i32 [M, ranks]: row of (token, rank) among all rows sent, -1 if it is not sent there
  TensorView tokens;    ///< i32 [M * min(k, ranks)]: token of each row; rows of rank 0 first

  static SendPlan take(Arena& arena, std::int64_t num_tokens, std::int64_t top_k, std::int64_t num_ranks) {
    SendPlan plan;
    plan.counts = arena.take(DType::i64, {num_ranks});
    plan.position = arena.take(DType::i32, {num_tokens, num_ranks});
    plan.tokens = arena.take(DType::i32, {max_rows(num_tokens, top_k, num_ranks)});
    return plan;
  }
  static std::int64_t max_rows(std::int64_t num_tokens, std::int64_t top_k, std::int64_t num_ranks) {
    return num_tokens * std::min(top_k, num_ranks);
  }

  std::int64_t count(int rank) const { return counts.as<std::int64_t>()[rank]; }
  std::int64_t num_rows() const {
    std::int64_t sum = 0;
    for (int r = 0; r < counts.size(0); ++r) sum += count(r);
    return sum;
  }
  std::int64_t row(std::int64_t token, int rank) const {
    return position.as<std::int32_t>()[token * position.size(1) + rank];
  }
  std::int64_t token_of(std::int64_t row) const { return tokens.as<std::int32_t>()[row]; }

  /// rank_of(token, pick): the owner, or -1.
  template <class RankOf>
  void fill(std::int64_t top_k, RankOf&& rank_of) const {
    const std::int64_t num_tokens = position.size(0), num_ranks = position.size(1);
    auto* at = position.as<std::int32_t>();
    auto* rows = counts.as<std::int64_t>();
    std::fill_n(at, position.numel(), -1);
    std::fill_n(rows, num_ranks, std::int64_t{0});
    for (std::int64_t token = 0; token < num_tokens; ++token)
      for (std::int64_t pick = 0; pick < top_k; ++pick) {
        const int rank = rank_of(token, pick);
        if (rank < 0 || at[token * num_ranks + rank] >= 0) continue;
        at[token * num_ranks + rank] = static_cast<std::int32_t>(rows[rank]++);
      }
    std::int64_t first = 0;
    for (std::int64_t rank = 0; rank < num_ranks; first += rows[rank++])
      for (std::int64_t token = 0; token < num_tokens; ++token) {
        std::int32_t& row = at[token * num_ranks + rank];
        if (row < 0) continue;
        row += static_cast<std::int32_t>(first);
        tokens.as<std::int32_t>()[row] = static_cast<std::int32_t>(token);
      }
  }
};

}  // namespace conclave::dispatch
