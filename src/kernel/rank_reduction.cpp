// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// All-reduce, round.
#include "kernel/rank_reduction.hpp"

#include "cpu/float_convert.hpp"
#include "cpu/parallel_for.hpp"

namespace conclave {
namespace {

/// Rows for each grab: a row of a real model is a few KiB, far more than starting a region costs.
constexpr std::int64_t kRowsWorthThreads = 4;

}  // namespace

std::int64_t ranks_to_sum(const ParallelConfig& parallel, bool output_is_reduced) noexcept {
  return output_is_reduced ? parallel.tp_size : parallel.tp_size * parallel.ep_size;
}

RankSum take_rank_sum(Arena& arena, std::int64_t num_ranks, std::int64_t num_tokens, std::int64_t width) {
  const std::int64_t count = num_tokens * width;
  // As Communicator::all_reduce_scratch, which plan() cannot ask: it has no communicator.
  return {arena.take(DType::f32, {num_tokens, width}),
          arena.take(DType::f32, {(count + num_ranks - 1) / num_ranks * num_ranks})};
}

void sum_rows_over_ranks(Communicator& communicator, const RankSum& sum, const TensorView& output, Stream stream,
                         int channel) {
  communicator.all_reduce(sum.rows.as<float>(), sum.rows.numel(), sum.scratch.as<float>(), channel);
  cpu::parallel_for(*stream.executor, output.size(0), kRowsWorthThreads,
                    [&](std::int64_t begin, std::int64_t end, int) {
                      for (std::int64_t m = begin; m < end; ++m)
                        cpu::store_row_f32(sum.rows.at(m).as<float>(), output.at(m));
                    });
}

}  // namespace conclave
