// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The tile of a grouped product on Hopper: plain numbers, known on machines without a GPU.
#pragma once

namespace conclave::experts::cuda {

/// The compiled variants. Sizes of tiles; which fits what is argued in choose.cpp.
struct GemmTile {
  int tokens = 8;           ///< 8, 16, 32, 64 or 128.
  int weight_rows = 128;    ///< 128, 256: shared by two warpgroups; 64, 192: they take turns.
  int blocks = 1;           ///< 2: pairs of blocks multiply the same weights with other rows.
  bool token_rows = false;  ///< Tokens are the 64-row operand of wgmma and weights its columns; else the reverse.
  /// Rows of one tile of the tile map.
  constexpr int map_rows() const { return tokens * blocks; }
  /// Rows of the box by which the weights' tensor map must fetch.
  constexpr int box_rows() const { return weight_rows / blocks; }
  bool operator==(const GemmTile&) const = default;
};

}  // namespace conclave::experts::cuda
