// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: for each token, the partial rows of some ranks. Out: their sum in rank order, in f32, rounded once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/float_convert.hpp"
#include "cpu/parallel_for.hpp"

namespace conclave::dispatch {

/// Below this many elements a parallel region costs more than the sum.
inline constexpr std::int64_t kSumsWorthThreads = 16384;
/// Columns that stay in the first-level cache.
inline constexpr std::int64_t kSumColumns = 512;

/// output [M, H] := the sum over `num_ranks` of the rows of `dtype` at row_of(token, rank), in rank order. Null: no
/// row. The first row is taken as it is, so one rank's rows keep their bits; a token without rows becomes zeros.
template <class RowOf>
void sum_over_ranks(const TensorView& output, int num_ranks, DType dtype, Stream stream, RowOf&& row_of) {
  const std::int64_t width = output.size(1);
  const auto sum_token = [&](std::int64_t token) {
    float sum[kSumColumns];
    float term[kSumColumns];
    for (std::int64_t h = 0; h < width; h += kSumColumns) {
      const std::int64_t n = std::min(kSumColumns, width - h);
      bool first = true;
      for (int rank = 0; rank < num_ranks; ++rank) {
        const std::byte* row = row_of(token, rank);
        if (row == nullptr) continue;
        cpu::load_f32(row + bytes_of(dtype, h), dtype, n, first ? sum : term);
        if (!first)
          for (std::int64_t i = 0; i < n; ++i) sum[i] += term[i];
        first = false;
      }
      if (first) std::fill_n(sum, n, 0.0f);
      cpu::store_f32(sum, output.dtype, n, output.at(token).narrow(0, h, n).data);
    }
  };
  const std::int64_t grain = kSumsWorthThreads / std::max<std::int64_t>(1, width * num_ranks);
  cpu::parallel_for(*stream.executor, output.size(0), grain, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t token = begin; token < end; ++token) sum_token(token);
  });
}

}  // namespace conclave::dispatch
