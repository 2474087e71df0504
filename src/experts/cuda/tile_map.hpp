// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: topk_ids i32 [M, k], or counts i32 [E] of rows that are sorted already. Out, on the device and without a word to
// the host: where each slot's row lies when rows are sorted by expert, which token each row is, and the list of token
// tiles (expert, first row, rows) that every grouped product walks. Rows of one expert keep the order of their slots,
// so equal inputs give equal bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "conclave/tensor.hpp"
#include "conclave/workspace.hpp"

namespace conclave::experts::cuda {

/// Token tiles of one expert that are visited together: while their weights are in L2, all of them use them.
inline constexpr int kTilesPerGroup = 8;

/// Slots of one block. Two rounds of 32 a warp: matching lanes by expert takes a multiprocessor some 60 cycles a warp,
/// so many slots in one block are slower than a second launch.
inline constexpr std::int32_t kSlotsPerBlock = 2048;

/// Kernels that build a map.
constexpr int tile_map_launches(std::int64_t num_slots) {
  return num_slots <= kSlotsPerBlock ? 1 : 2;
}

/// One token tile: at most tile_rows rows of one expert. 16 bytes, read with one load.
struct alignas(16) TokenTile {
  std::int32_t expert_and_group;  ///< Local expert | tiles in the group << 16.
  std::int32_t first_row;         ///< Among the rows sorted by expert.
  std::int32_t rows;
  std::int32_t group_first;  ///< Index of the first tile of the group.

  __host__ __device__ std::int32_t expert() const { return expert_and_group & 0xFFFF; }
  __host__ __device__ std::int32_t group_size() const { return expert_and_group >> 16; }
};

/// Device memory of a tile map for at most `num_slots` slots.
struct TileMap {
  TokenTile* tiles = nullptr;            ///< [num_tiles]
  std::int32_t* num_tiles = nullptr;     ///< [1]
  std::int32_t* row_tokens = nullptr;    ///< [num_slots] token of a row
  std::int32_t* slot_rows = nullptr;     ///< [num_slots] row of a slot; -1: no local expert
  std::int32_t* block_counts = nullptr;  ///< [blocks, experts]; only where slots are many
};

/// How an expert's rows are cut.
struct TileHeights {
  std::int32_t rows = 8;  ///< At most.
  /// As high as each other: a full tile and one of few rows would stream the weights twice and take longer than two
  /// halves. False: full ones and a rest, where a tile takes as long for 65 rows as for 128.
  bool equal = true;
};

struct TileMapInput {
  const std::int32_t* topk_ids = nullptr;    ///< [num_slots]
  const std::int32_t* expert_map = nullptr;  ///< [num_experts] or null
  std::int32_t num_slots = 0;
  std::int32_t top_k = 1;
  std::int32_t num_experts = 0;        ///< Global ids are below this; others are empty slots.
  std::int32_t num_local_experts = 0;  ///< At most 1024.
  TileHeights heights;
};

/// Takes a map for `num_slots` slots and at most `num_local_experts` experts from the arena.
TileMap take_tile_map(Arena& arena, std::int64_t num_slots, std::int64_t num_local_experts, std::int64_t tile_rows);

void build_tile_map(const TileMapInput& input, const TileMap& map, cudaStream_t stream);

/// The batched format, where rows need no sorting: expert e's are counts[e] rows from e * max_rows on.
struct CountedRows {
  const std::int32_t* counts = nullptr;  ///< [num_local_experts]; what is not in [0, max_rows] counts as the nearer end
  std::int32_t num_local_experts = 0;    ///< At most 1024.
  std::int32_t max_rows = 0;
  TileHeights heights;
};

/// Takes a map for every expert with up to `max_rows` rows. There are no slots, and row_tokens is each row itself.
TileMap take_counted_map(Arena& arena, std::int64_t num_local_experts, std::int64_t max_rows, std::int64_t tile_rows);

void build_counted_map(const CountedRows& input, const TileMap& map, cudaStream_t stream);

}  // namespace conclave::experts::cuda
