// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a task (some row tiles of one expert x some panels). Out: its sums, handed tile by tile to `finish`. Two orders
// of the same additions:
//   stream   one row tile: the weights are read once, from memory, and every sum stays in registers over all of k
//   blocked  several row tiles: a block of k of one panel (16 to 32 KiB) stays in L1 while all tiles pass over it, the
//            rows' block stays in L2 for the group's panels, and sums wait in between in a buffer
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <utility>

#include "experts/cpu/engine.hpp"
#include "experts/cpu/row_tiles.hpp"

namespace conclave::experts::grouped {
namespace {

template <class Kernel>
using Multiply = void (*)(const typename Kernel::Input* a, const typename Kernel::Weight* b, std::int64_t panel_stride,
                          std::int64_t k, float* c, bool accumulate);

/// multiply() for a number of rows known at run time, by tables of one entry for each quantum of rows.
template <class Part>
struct Kernels {
  using Kernel = typename Part::Kernel;
  static constexpr int kSizes = Part::kRowTile / Part::kRowQuantum;

  template <int... Index>
  static constexpr Multiply<Kernel> blocked(int size, std::integer_sequence<int, Index...>) {
    constexpr Multiply<Kernel> table[] = {&Kernel::template multiply<(Index + 1) * Part::kRowQuantum, 1, false>...};
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
  static Multiply<Kernel> blocked(std::int64_t rows) {
    return blocked(static_cast<int>(rows / Part::kRowQuantum) - 1, std::make_integer_sequence<int, kSizes>());
  }
  static Multiply<Kernel> stream(std::int64_t rows, bool wide) {
    return stream(static_cast<int>(rows / Part::kRowQuantum) - 1, wide, std::make_integer_sequence<int, kSizes>());
  }
};

/// The share `part` of `parts` of one block of weights, into L2, while the block before it is being multiplied.
inline void prefetch_share(const void* block, std::int64_t bytes, std::int64_t part, std::int64_t parts) {
  const auto* from = static_cast<const char*>(block);
  const std::int64_t lines = bytes / 64;
  for (std::int64_t line = lines * part / parts; line < lines * (part + 1) / parts; ++line)
    _mm_prefetch(from + line * 64, _MM_HINT_T1);
}

template <class Part>
struct ProductLoop {
  using Kernel = typename Part::Kernel;
  using Input = typename Kernel::Input;
  using Weight = typename Kernel::Weight;
  static constexpr std::int64_t kPanel = Kernel::kPanel;
  static constexpr std::int64_t kTileSums = Part::kRowTile * kPanel;

  const ProductTask& task;
  const RowTiles tiles{task.rows, Part::kRowTile, Part::kRowQuantum};
  const std::int64_t panel_stride = task.k * kPanel;

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
      Kernels<Part>::stream(rows, count > 1)(inputs(task.tile_begin), panel(p), panel_stride, task.k, sums, false);
      for (std::int64_t i = 0; i < count; ++i) finish(sums + i * rows * kPanel, task.tile_begin, p + i);
      p += count;
    }
  }

  template <class Finish>
  void blocked(const Finish& finish) const {
    alignas(64) float sums[kMaxGroup * Part::kBlockTiles * kTileSums];
    const std::int64_t num_tiles = task.tile_end - task.tile_begin;
    for (std::int64_t k = 0; k < task.k; k += Part::kBlock) {
      const std::int64_t depth = task.k - k < Part::kBlock ? task.k - k : Part::kBlock;
      for (std::int64_t p = 0; p < task.num_panels; ++p) {
        const Weight* weights = panel(p) + k * kPanel;
        // After the group's last panel comes its first again, one block further in k.
        const Weight* next = p + 1 < task.num_panels ? weights + panel_stride : panel(0) + (k + Part::kBlock) * kPanel;
        for (std::int64_t t = 0; t < num_tiles; ++t) {
          prefetch_share(next, depth * kPanel * std::int64_t{sizeof(Weight)}, t, num_tiles);
          const std::int64_t rows = tiles.padded(task.tile_begin + t);
          Kernels<Part>::blocked(rows)(inputs(task.tile_begin + t) + k * rows, weights, panel_stride, depth,
                                       sums + (p * num_tiles + t) * kTileSums, k > 0);
        }
      }
    }
    for (std::int64_t p = 0; p < task.num_panels; ++p)
      for (std::int64_t t = 0; t < num_tiles; ++t)
        finish(sums + (p * num_tiles + t) * kTileSums, task.tile_begin + t, p);
  }

  template <class Finish>
  void run(const Finish& finish) const {
    const typename Kernel::Session session;
    if (task.tile_end - task.tile_begin == 1) {
      stream(finish);
    } else {
      blocked(finish);
    }
  }
};

}  // namespace
}  // namespace conclave::experts::grouped
