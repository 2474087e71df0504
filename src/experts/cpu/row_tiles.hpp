// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: how many rows one expert got. Out: the register tiles they are cut into. Packing, both products and their
// epilogues must agree on this, and it depends on that one number only.
#pragma once

#include <cstdint>

namespace conclave::experts::grouped {

/// Tiles of at most `tile` rows in multiples of `quantum` (16 for AMX, whose tiles have 16 rows; 1 elsewhere). Sizes
/// differ by at most one quantum: 7 rows run as 4 + 3 rather than 6 + 1, because a tile of one row waits for the
/// latency of its few sums. Always inlined: no copy compiled for one instruction set may serve the rest of the program.
struct RowTiles {
  std::int64_t rows;
  std::int64_t tile;
  std::int64_t quantum;

  [[gnu::always_inline]] std::int64_t units() const { return (rows + quantum - 1) / quantum; }
  [[gnu::always_inline]] std::int64_t count() const { return (rows + tile - 1) / tile; }
  /// First row of tile `t`; every row before it, padded or not, belongs to an earlier tile.
  [[gnu::always_inline]] std::int64_t begin(std::int64_t t) const { return units() * t / count() * quantum; }
  /// Rows of tile `t` as the kernel computes them: a multiple of the quantum.
  [[gnu::always_inline]] std::int64_t padded(std::int64_t t) const { return begin(t + 1) - begin(t); }
  /// Rows of tile `t` that exist.
  [[gnu::always_inline]] std::int64_t valid(std::int64_t t) const {
    const std::int64_t first = begin(t);
    const std::int64_t end = begin(t + 1);
    return (end < rows ? end : rows) - first;
  }
};

}  // namespace conclave::experts::grouped
