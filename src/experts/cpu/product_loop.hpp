// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a task (some row tiles of one expert x some panels). Out: its sums, handed tile by tile to `finish`. Two orders
// of the same additions:
//   stream   one row tile: the weights are read once, from memory, and every sum stays in registers over all of k
//   blocked  several row tiles: a block of k of one panel (8 to 32 KiB) stays in L1 or L2 while all tiles pass over it,
//            the rows' block stays in L2 for the group's panels, and sums wait in between in a buffer
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "experts/cpu/engine.hpp"
#include "experts/cpu/row_tiles.hpp"
#include "experts/cpu/vector_kernel.hpp"

namespace conclave::experts::grouped {
namespace {

template <class Kernel>
using Multiply = void (*)(const typename Kernel::Input* a, const typename Kernel::Weight* b, std::int64_t panel_stride,
                          std::int64_t k, float* c, bool accumulate, Ahead ahead);

/// The kernel of blocks: of what decode_block() made of one, where a part has that.
template <class Kernel>
struct BlockKernelOf {
  using Type = Kernel;
};
template <class Kernel>
requires requires {
  typename Kernel::DecodedKernel;
}
struct BlockKernelOf<Kernel> {
  using Type = typename Kernel::DecodedKernel;
};

/// multiply() for a number of rows known at run time, by tables of one entry for each quantum of rows.
template <class Part>
struct Kernels {
  using Kernel = typename Part::Kernel;
  using BlockKernel = typename BlockKernelOf<Kernel>::Type;
  static constexpr int kSizes = Part::kRowTile / Part::kRowQuantum;

  template <int... Index>
  static constexpr Multiply<BlockKernel> blocked(int size, std::integer_sequence<int, Index...>) {
    constexpr Multiply<BlockKernel> table[] = {
        &BlockKernel::template multiply<(Index + 1) * Part::kRowQuantum, 1, false>...};
    return table[size];
  }
  template <int... Index>
  static constexpr Multiply<Kernel> stream(int size, bool wide, std::integer_sequence<int, Index...>) {
    constexpr Multiply<Kernel> table[] = {
        &Kernel::template multiply<(Index + 1) * Part::kRowQuantum, 1, true>...,
        &Kernel::template multiply<(Index + 1) * Part::kRowQuantum, Kernel::streams((Index + 1) * Part::kRowQuantum),
                                   true>...};
    return table[wide ? kSizes + size : size];
  }
  static Multiply<BlockKernel> blocked(std::int64_t rows) {
    return blocked(static_cast<int>(rows / Part::kRowQuantum) - 1, std::make_integer_sequence<int, kSizes>());
  }
  static Multiply<Kernel> stream(std::int64_t rows, bool wide) {
    return stream(static_cast<int>(rows / Part::kRowQuantum) - 1, wide, std::make_integer_sequence<int, kSizes>());
  }
};

template <class Part>
struct ProductLoop {
  using Kernel = typename Part::Kernel;
  using Input = typename Kernel::Input;
  using Weight = typename Kernel::Weight;
  using BlockKernel = typename Kernels<Part>::BlockKernel;
  static constexpr bool kDecodes = !std::is_same_v<Kernel, BlockKernel>;
  /// Values of k in one step of the kernel of blocks, and bytes of the panel that they are.
  static constexpr std::int64_t kBlockStep = kDecodes ? BlockKernel::kWeightGroup : Part::kStep;
  static constexpr std::int64_t kBlockStepBytes = Kernel::kStepBytes * kBlockStep / Part::kStep;
  static constexpr std::int64_t kPanel = Kernel::kPanel;
  static constexpr std::int64_t kTileSums = Part::kRowTile * kPanel;

  const ProductTask& task;
  const RowTiles tiles{task.rows, Part::kRowTile, Part::kRowQuantum};
  const std::int64_t panel_stride = Kernel::offset(task.k);

  const Input* inputs(std::int64_t tile) const {
    return static_cast<const Input*>(task.inputs) + tiles.begin(tile) * task.k;
  }
  const Weight* panel(std::int64_t p) const { return static_cast<const Weight*>(task.panels) + p * panel_stride; }

  /// finish(sums [rows][panel_columns], tile, panel).
  template <class Finish>
  void stream(const Finish& finish) const {
    alignas(64) float sums[4 * kTileSums];
    const std::int64_t rows = tiles.padded(task.tile_begin);
    const std::int64_t wide = Kernel::streams(static_cast<int>(rows));
    for (std::int64_t p = 0; p < task.num_panels;) {
      const std::int64_t count = task.num_panels - p >= wide ? wide : 1;
      Kernels<Part>::stream(rows, count > 1)(inputs(task.tile_begin), panel(p), panel_stride, task.k, sums, false, {});
      for (std::int64_t i = 0; i < count; ++i) finish(sums + i * rows * kPanel, task.tile_begin, p + i);
      p += count;
    }
  }

  /// A tile of a blocked task: worked out once, because tiles are found by division, and a division for each block of
  /// each panel took a twentieth of the time of the products.
  struct BlockTile {
    const Input* inputs;
    std::int64_t rows;
    Multiply<BlockKernel> multiply;
    Ahead ahead;  ///< Without its addresses.
  };

  /// What a tile fetches while it passes over a block: of the next block, the share of one tile among all, rounded up
  /// so that no line is left out; of its own inputs for the next k, the share of one panel among all.
  BlockTile block_tile(std::int64_t t, std::int64_t num_tiles) const {
    const std::int64_t rows = tiles.padded(t);
    return {inputs(t), rows, Kernels<Part>::blocked(rows),
            Ahead{nullptr, (kBlockStepBytes + num_tiles - 1) / num_tiles, nullptr,
                  rows * kBlockStep * std::int64_t{sizeof(Input)} / task.num_panels}};
  }

  /// What is multiplied after block `k` of panel `p`: the next panel's, the first panel's next, or another task's.
  const char* next_block(std::int64_t p, std::int64_t k) const {
    if (p + 1 < task.num_panels) return reinterpret_cast<const char*>(panel(p + 1) + Kernel::offset(k));
    if (k + Part::kBlock < task.k) return reinterpret_cast<const char*>(panel(0) + Kernel::offset(k + Part::kBlock));
    return static_cast<const char*>(task.next);
  }

  /// Of a block; an array needs one.
  static constexpr std::int64_t decoded_floats() {
    if constexpr (kDecodes) return Kernel::decoded_floats(Part::kBlock);
    return 1;
  }

  std::int64_t depth(std::int64_t k) const { return task.k - k < Part::kBlock ? task.k - k : Part::kBlock; }

  /// Block `k` of panel `p` times every tile.
  void multiply_block(const BlockTile* block, std::int64_t num_tiles, std::int64_t p, std::int64_t k, float* decoded,
                      float* sums) const {
    const Weight* weights = panel(p) + Kernel::offset(k);
    const std::int64_t num_steps = depth(k) / kBlockStep;
    const char* next = next_block(p, k);
    const bool more_inputs = k + Part::kBlock < task.k;
    const typename BlockKernel::Weight* factors;
    if constexpr (kDecodes) {
      Kernel::decode_block(weights, depth(k), decoded);
      factors = decoded;
    } else {
      factors = weights;
    }
    for (std::int64_t t = 0; t < num_tiles; ++t) {
      const BlockTile& tile = block[t];
      const Input* from = tile.inputs + k * tile.rows;
      Ahead ahead = tile.ahead;
      // Without a next block or k, what is in the cache already.
      if (next == nullptr) ahead.weight_step = 0;
      if (!more_inputs) ahead.input_step = 0;
      ahead.weights =
          next == nullptr ? reinterpret_cast<const char*>(weights) : next + t * ahead.weight_step * num_steps;
      ahead.inputs = reinterpret_cast<const char*>(from + (more_inputs ? Part::kBlock * tile.rows : 0)) +
                     p * ahead.input_step * num_steps;
      tile.multiply(from, factors, panel_stride, depth(k), sums + t * kTileSums, k > 0, ahead);
    }
  }

  template <class Finish>
  void blocked(const Finish& finish) const {
    alignas(64) float sums[Part::kSumTiles * kTileSums];
    alignas(64) float decoded[decoded_floats()];
    BlockTile block[Part::kBlockTiles];
    const std::int64_t num_tiles = task.tile_end - task.tile_begin;
    for (std::int64_t t = 0; t < num_tiles; ++t) block[t] = block_tile(task.tile_begin + t, num_tiles);
    for (std::int64_t k = 0; k < task.k; k += Part::kBlock)
      for (std::int64_t p = 0; p < task.num_panels; ++p)
        multiply_block(block, num_tiles, p, k, decoded, sums + p * num_tiles * kTileSums);
    for (std::int64_t p = 0; p < task.num_panels; ++p)
      for (std::int64_t t = 0; t < num_tiles; ++t)
        finish(sums + (p * num_tiles + t) * kTileSums, task.tile_begin + t, p);
  }

  template <class Finish>
  void run(const Finish& finish) const {
    const bool one_tile = task.tile_end - task.tile_begin == 1;
    const typename Kernel::Session session(one_tile ? tiles.valid(task.tile_begin) : task.rows);
    if (one_tile) {
      stream(finish);
    } else {
      blocked(finish);
    }
  }
};

}  // namespace
}  // namespace conclave::experts::grouped
