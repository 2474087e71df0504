// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Widen, all-reduce, round.
#include "kernel/rank_reduction.hpp"

#include "cpu/float_convert.hpp"
#include "cpu/parallel_for.hpp"

namespace conclave {
namespace {

struct RankSumBuffers {
  TensorView sum;      ///< f32 [M, W]
  TensorView scratch;  ///< f32
};

RankSumBuffers take(Arena& arena, std::int64_t num_ranks, std::int64_t num_tokens, std::int64_t width) {
  const std::int64_t count = num_tokens * width;
  // As Communicator::all_reduce_scratch, which plan() cannot ask: it has no communicator.
  return {arena.take(DType::f32, {num_tokens, width}),
          arena.take(DType::f32, {(count + num_ranks - 1) / num_ranks * num_ranks})};
}

/// Rows for each grab: a row of a real model is a few KiB, far more than starting a region costs.
constexpr std::int64_t kRowsWorthThreads = 4;

}  // namespace

std::int64_t ranks_to_sum(const ParallelConfig& parallel, bool output_is_reduced) noexcept {
  return output_is_reduced ? parallel.tp_size : parallel.tp_size * parallel.ep_size;
}

void plan_rank_sum(Arena& arena, std::int64_t num_ranks, std::int64_t num_tokens, std::int64_t width) {
  if (num_ranks > 1) take(arena, num_ranks, num_tokens, width);
}

void sum_rows_over_ranks(Communicator& communicator, const TensorView& rows, Arena& arena, Stream stream, int channel) {
  const std::int64_t mark = arena.mark();
  const RankSumBuffers b = take(arena, communicator.size(), rows.size(0), rows.size(1));
  const auto for_rows = [&](auto&& f) {
    cpu::parallel_for(*stream.executor, rows.size(0), kRowsWorthThreads,
                      [&](std::int64_t begin, std::int64_t end, int) {
                        for (std::int64_t m = begin; m < end; ++m) f(m);
                      });
  };
  for_rows([&](std::int64_t m) { cpu::load_row_f32(rows.at(m), b.sum.at(m).as<float>()); });
  communicator.all_reduce(b.sum.as<float>(), b.sum.numel(), b.scratch.as<float>(), channel);
  for_rows([&](std::int64_t m) { cpu::store_row_f32(b.sum.at(m).as<float>(), rows.at(m)); });
  arena.release(mark);
}

}  // namespace conclave
