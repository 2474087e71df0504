// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: rows by expert. Out: units of work, shared among threads, handed to the engine.
#include "experts/cpu/phases.hpp"

#include <algorithm>
#include <atomic>

#include "cpu/parallel_for.hpp"
#include "experts/cpu/row_tiles.hpp"

namespace conclave::experts::grouped {
namespace {

RowTiles tiles_of(const Engine& engine, std::int64_t rows) {
  return {rows, engine.row_tile, engine.row_quantum};
}

std::int64_t blocks_of(const Engine& engine, std::int64_t rows) {
  return (tiles_of(engine, rows).count() + engine.block_tiles - 1) / engine.block_tiles;
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Hands out units in order. Decode takes large shares first and small ones last: long runs of memory for each thread,
/// and no thread that waits for another's last megabyte. Otherwise units are large and unequal, so one at a time.
class UnitCounter {
 public:
  UnitCounter(std::int64_t count, bool decode, int num_threads)
      : count_(count), shrink_(decode ? 2 * std::int64_t{num_threads} : count + 1) {}

  cpu::Range take() noexcept {
    std::int64_t begin = next_.load(std::memory_order_relaxed);
    std::int64_t end = begin;
    do {
      if (begin >= count_) return {};
      const std::int64_t share = std::max<std::int64_t>(1, (count_ - begin) / shrink_);
      // Whole fours where there are several: up to that many panels are streamed side by side.
      end = begin + (share > 4 ? share / 4 * 4 : share);
    } while (!next_.compare_exchange_weak(begin, end, std::memory_order_relaxed));
    return {begin, end};
  }

 private:
  alignas(64) std::atomic<std::int64_t> next_{0};
  const std::int64_t count_;
  const std::int64_t shrink_;
};

/// Some panels and row tiles of one expert: one unit of work, or several neighbours.
struct Piece {
  std::int64_t units;
  std::int64_t expert;
  std::int64_t panel_begin, panel_end;
  std::int64_t tile_begin, tile_end;
};

/// The piece that starts at unit `range.begin`. Row blocks are the inner index: threads that take neighbouring units
/// read the same panels while the shared cache has them.
Piece piece_at(const Call& call, const Assignment& assignment, const ProductGrid& grid, std::int64_t num_panels,
               cpu::Range range) {
  const std::int64_t a = assignment.owner_of(range.begin);
  const std::int64_t expert = assignment.active[a];
  const std::int64_t index = range.begin - assignment.units[a];
  const std::int64_t rows = assignment.experts[expert].rows;
  const std::int64_t num_tiles = tiles_of(call.engine, rows).count();
  const std::int64_t num_blocks = grid.decode ? 1 : blocks_of(call.engine, rows);
  const std::int64_t block = index % num_blocks;
  // Neighbouring panels of one tile are one piece, so that the engine can stream several at once.
  const std::int64_t units = grid.decode ? std::min(range.end, assignment.units[a + 1]) - range.begin : 1;
  const std::int64_t panel = index / num_blocks * grid.group;
  return {units,
          expert,
          panel,
          std::min(panel + units * grid.group, num_panels),
          num_tiles * block / num_blocks,
          num_tiles * (block + 1) / num_blocks};
}

ProductTask task_of(const Call& call, const Assignment& assignment, const PackedMatrix& matrix, const void* inputs,
                    const float* row_scales, const Piece& piece) {
  const ExpertRows& expert = assignment.experts[piece.expert];
  return {
      .inputs = static_cast<const std::byte*>(inputs) + expert.base * matrix.k * call.engine.input_bytes,
      .panels = matrix.panel(piece.expert, piece.panel_begin),
      .next = nullptr,
      .bias = matrix.of_panel(matrix.bias, piece.expert, piece.panel_begin),
      .row_scales = row_scales == nullptr ? nullptr : row_scales + expert.base,
      .column_scales = matrix.of_panel(matrix.column_scales, piece.expert, piece.panel_begin),
      .column_sums = matrix.of_panel(matrix.column_sums, piece.expert, piece.panel_begin),
      .k = matrix.k,
      .num_panels = piece.panel_end - piece.panel_begin,
      .rows = expert.rows,
      .tile_begin = piece.tile_begin,
      .tile_end = piece.tile_end,
  };
}

/// run(piece, task) for every piece of one product, on all threads.
template <class Run>
void run_product(const Call& call, Assignment& assignment, const PackedMatrix& matrix, const void* inputs,
                 const float* row_scales, Run&& run) {
  if (assignment.num_rows == 0) return;
  const int num_threads = call.executor.num_threads();
  const ProductGrid grid = grid_of(call.engine, assignment, matrix.num_panels, num_threads);
  UnitCounter counter(assignment.units[assignment.num_active], grid.decode, num_threads);
  const auto piece_of = [&](cpu::Range r) { return piece_at(call, assignment, grid, matrix.num_panels, r); };
  call.executor.parallel([&](int /*thread*/) {
    cpu::Range next = counter.take();
    while (next.size() > 0) {
      cpu::Range range = next;
      // Decode takes its next share when it needs it. Prefill takes one unit more before, so that the unit's first
      // panel can be fetched during this one.
      next = grid.decode ? cpu::Range{} : counter.take();
      while (range.size() > 0) {
        const Piece piece = piece_of(range);
        ProductTask task = task_of(call, assignment, matrix, inputs, row_scales, piece);
        if (next.size() > 0) {
          const Piece after = piece_of(next);
          task.next = matrix.panel(after.expert, after.panel_begin);
        }
        run(piece, task);
        range.begin += piece.units;
      }
      if (grid.decode) next = counter.take();
    }
  });
}

float* offset_or_null(float* values, std::int64_t offset) {
  return values == nullptr ? nullptr : values + offset;
}

std::byte* input_row(const Call& call, void* inputs, std::int64_t row, std::int64_t k) {
  return static_cast<std::byte*>(inputs) + row * k * call.engine.input_bytes;
}

/// engine.pack_rows() for every row tile; task_of_tile(expert, first row of the tile) knows all but the number of rows.
template <class TaskOf>
void pack_tiles(const Call& call, Assignment& assignment, std::int64_t k, TaskOf&& task_of_tile) {
  const Engine& engine = call.engine;
  const std::int64_t num_units =
      assignment.count_units([&](const ExpertRows& e) { return tiles_of(engine, e.rows).count(); });
  // A region costs a few microseconds, in which one thread packs some thousand elements.
  constexpr std::int64_t kElementsWorthARegion = 32768;
  const std::int64_t grain = assignment.num_rows * k < kElementsWorthARegion ? num_units : 0;
  cpu::parallel_for(call.executor, num_units, grain, [&](std::int64_t begin, std::int64_t end, int /*thread*/) {
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t a = assignment.owner_of(unit);
      const ExpertRows& expert = assignment.experts[assignment.active[a]];
      const RowTiles tiles = tiles_of(engine, expert.rows);
      const std::int64_t tile = unit - assignment.units[a];
      PackRowsTask task = task_of_tile(expert, tiles.begin(tile));
      task.valid_rows = tiles.valid(tile);
      task.padded_rows = tiles.padded(tile);
      engine.pack_rows(task);
    }
  });
}

float scalar_activation(const ActivationFn& fn, float gate, float up) {
  return fn.gated ? activate(fn, gate, up) : activate(fn, gate);
}

}  // namespace

ProductGrid grid_of(const Engine& engine, Assignment& assignment, std::int64_t num_panels, int num_threads) {
  if (assignment.max_rows <= engine.row_tile) {
    assignment.count_units([&](const ExpertRows&) { return num_panels; });
    return {true, 1};
  }
  // Large units read each row block less often, which matters where products are fast (AMX: with four panels a unit
  // reads as many bytes of rows as of weights). But one hot expert of few panels must still keep every thread busy.
  const std::int64_t block_tiles = std::min(engine.block_tiles, tiles_of(engine, assignment.max_rows).count());
  const std::int64_t enough = 8 * std::int64_t{num_threads};
  std::int64_t group = 16;
  while (group * block_tiles > engine.sum_tiles) group /= 2;
  for (;; group /= 2) {
    const std::int64_t units = assignment.count_units(
        [&](const ExpertRows& e) { return ceil_div(num_panels, group) * blocks_of(engine, e.rows); });
    if (units >= enough || group == 1) return {false, group};
  }
}

void pack_rows(const Call& call, Assignment& assignment) {
  const std::int64_t k = call.weights.w13().k;
  pack_tiles(call, assignment, k, [&](const ExpertRows& expert, std::int64_t row) {
    return PackRowsTask{.hidden_states = call.hidden_states.data,
                        .dtype = call.hidden_states.dtype,
                        .row_stride = call.hidden_states.stride(0),
                        .pairs = assignment.pairs + expert.first + row,
                        .top_k = call.top_k,
                        .num_columns = call.hidden_states.size(1),
                        .k = k,
                        .to = input_row(call, call.inputs, expert.base + row, k),
                        .scales = offset_or_null(call.input_scales, expert.base + row)};
  });
}

void pack_activations(const Call& call, Assignment& assignment) {
  if (!call.engine.packs_whole_rows) return;
  const std::int64_t k = call.weights.w2().k;
  pack_tiles(call, assignment, k, [&](const ExpertRows& expert, std::int64_t row) {
    return PackRowsTask{.hidden_states = call.activation_rows + (expert.base + row) * k,
                        .dtype = DType::f32,
                        .row_stride = k,
                        .pairs = nullptr,
                        .top_k = 1,
                        .num_columns = call.moe.intermediate_size,
                        .k = k,
                        .to = input_row(call, call.activations, expert.base + row, k),
                        .scales = offset_or_null(call.activation_scales, expert.base + row)};
  });
}

void first_product(const Call& call, Assignment& assignment) {
  const PackedMatrix& matrix = call.weights.w13();
  const std::int64_t padded = call.weights.w2().k;
  run_product(call, assignment, matrix, call.inputs, call.input_scales,
              [&](const Piece& piece, const ProductTask& task) {
                const std::int64_t base = assignment.experts[piece.expert].base;
                const ActivationTarget target{
                    .fn = &call.activation,
                    .scalar = scalar_activation,
                    .to = call.engine.packs_whole_rows ? static_cast<void*>(call.activation_rows + base * padded)
                                                       : input_row(call, call.activations, base, padded),
                    .first_panel = piece.panel_begin,
                    .intermediate_size = call.moe.intermediate_size,
                    .padded_intermediate = padded,
                };
                call.engine.first_product(task, target);
              });
}

void second_product(const Call& call, Assignment& assignment) {
  const PackedMatrix& matrix = call.weights.w2();
  run_product(call, assignment, matrix, call.activations, call.activation_scales,
              [&](const Piece& piece, const ProductTask& task) {
                const RowTarget target{
                    .rows = call.rows,
                    .row_stride = call.row_stride,
                    .pairs = assignment.pairs + assignment.experts[piece.expert].first,
                    .first_column = piece.panel_begin * matrix.panel_columns,
                    .num_columns = call.moe.expert_width(),
                };
                call.engine.second_product(task, target);
              });
}

void combine(const Call& call, const Assignment& assignment) {
  // Few tokens are cut by columns too, or one thread would do all. A multiple of every vector loop's stride.
  constexpr std::int64_t kColumns = 512;
  const std::int64_t num_columns = call.output.size(1);
  const std::int64_t cuts = ceil_div(num_columns, kColumns);
  const std::int64_t num_units = call.output.size(0) * cuts;
  cpu::parallel_for(call.executor, num_units, 4, [&](std::int64_t begin, std::int64_t end, int /*thread*/) {
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t token = unit / cuts;
      const std::int64_t column = unit % cuts * kColumns;
      call.engine.combine({.rows = call.rows + token * call.top_k * call.row_stride + column,
                           .row_stride = call.row_stride,
                           .present = assignment.present + token * call.top_k,
                           .weights = assignment.weights + token * call.top_k,
                           .top_k = call.top_k,
                           .num_columns = std::min(kColumns, num_columns - column),
                           .to = static_cast<std::byte*>(call.output.data) +
                                 bytes_of(call.output.dtype, token * call.output.stride(0) + column),
                           .dtype = call.output.dtype});
    }
  });
}

}  // namespace conclave::experts::grouped
