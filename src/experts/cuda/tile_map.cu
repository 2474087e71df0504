// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The counting sort behind tile_map.hpp. Each warp owns a run of slots and counts it by itself, so that ranks need no
// atomics and come out in the order of slots.
#include <cub/block/block_scan.cuh>

#include "cuda/check.hpp"
#include "cuda/launch.hpp"
#include "cuda/ptx/control.cuh"
#include "experts/cuda/tile_map.hpp"

namespace conclave::experts::cuda {
namespace {

namespace ptx = conclave::cuda::ptx;

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kRounds = kSlotsPerBlock / kThreads;
constexpr std::int32_t kMaxExperts = kThreads;  // One thread an expert in the scans.

struct Run {
  std::int32_t begin, end;
};

/// The slots of this warp: an equal share of the block's, rounded up to whole rounds.
__device__ Run run_of_warp(std::int32_t num_slots) {
  const std::int32_t first = static_cast<std::int32_t>(blockIdx.x) * kSlotsPerBlock;
  const std::int32_t count = min(kSlotsPerBlock, num_slots - first);
  const std::int32_t share = ((count + kWarps - 1) / kWarps + 31) / 32 * 32;
  const std::int32_t begin = static_cast<std::int32_t>(threadIdx.x / 32) * share;
  return {first + min(begin, count), first + min(begin + share, count)};
}

__device__ std::int32_t local_expert(const TileMapInput& in, std::int32_t slot, std::int32_t end) {
  if (slot >= end) return -1;
  const std::int32_t id = in.topk_ids[slot];
  if (id < 0 || id >= in.num_experts) return -1;
  const std::int32_t local = in.expert_map == nullptr ? id : in.expert_map[id];
  return local < in.num_local_experts ? local : -1;
}

/// The slots of one lane, read once: slot begin + 32 r + lane of round r, as local experts.
struct LaneSlots {
  Run run;
  std::int32_t expert[kRounds];
  unsigned peers[kRounds];  // Lanes of the same expert.

  __device__ explicit LaneSlots(const TileMapInput& in) : run(run_of_warp(in.num_slots)) {
#pragma unroll
    for (int r = 0; r < kRounds; ++r) expert[r] = local_expert(in, slot(r), run.end);
#pragma unroll
    for (int r = 0; r < kRounds; ++r) peers[r] = has(r) ? __match_any_sync(~0U, expert[r]) : 0;
  }
  __device__ std::int32_t slot(int round) const {
    return run.begin + 32 * round + static_cast<std::int32_t>(threadIdx.x) % 32;
  }
  __device__ bool has(int round) const {
    return run.begin + 32 * round < run.end;
  }
};

/// counts[warp][expert] of the block's slots.
__device__ void count_slots(const TileMapInput& in, const LaneSlots& slots, std::int32_t* counts) {
  for (int i = threadIdx.x; i < kWarps * in.num_local_experts; i += kThreads) counts[i] = 0;
  __syncthreads();
  std::int32_t* mine = counts + static_cast<int>(threadIdx.x / 32) * in.num_local_experts;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    if (!slots.has(r)) break;
    const std::int32_t expert = slots.expert[r];
    const unsigned peers = slots.peers[r];
    if (expert >= 0 && lane == __ffs(static_cast<int>(peers)) - 1) mine[expert] += __popc(peers);
    __syncwarp();
  }
  __syncthreads();
}

/// Turns counts of warps into first ranks of warps; returns the block's count of expert threadIdx.x.
__device__ std::int32_t rank_warps(const TileMapInput& in, std::int32_t* counts) {
  std::int32_t sum = 0;
  if (static_cast<int>(threadIdx.x) < in.num_local_experts)
#pragma unroll 8
    for (int w = 0; w < kWarps; ++w) {
      std::int32_t& count = counts[w * in.num_local_experts + static_cast<int>(threadIdx.x)];
      const std::int32_t own = count;
      count = sum;
      sum += own;
    }
  return sum;
}

struct RowsAndTiles {
  std::int32_t rows, tiles;
  __device__ RowsAndTiles operator+(const RowsAndTiles& other) const {
    return {rows + other.rows, tiles + other.tiles};
  }
};

/// Tiles of one expert, written by one warp.
__device__ void write_tiles(TileHeights heights, TokenTile* tiles, std::int32_t expert, std::int32_t rows,
                            RowsAndTiles first) {
  const std::int32_t count = (rows + heights.rows - 1) / heights.rows;
  for (std::int32_t t = threadIdx.x % 32; t < count; t += 32) {
    const std::int32_t group = t / kTilesPerGroup * kTilesPerGroup;
    const std::int32_t size = min(kTilesPerGroup, count - group);
    const auto row_of = [&](std::int32_t tile) {
      return heights.equal ? static_cast<std::int32_t>(static_cast<std::int64_t>(tile) * rows / count)
                           : min(tile * heights.rows, rows);
    };
    const std::int32_t begin = row_of(t);
    const std::int32_t end = row_of(t + 1);
    tiles[first.tiles + t] = {expert | size << 16, first.rows + begin, end - begin, first.tiles + group};
  }
}

struct alignas(16) Shared {
  union {
    cub::BlockScan<RowsAndTiles, kThreads>::TempStorage scan;
    std::int32_t first_row[kMaxExperts];
  };
  RowsAndTiles first[kMaxExperts];
  std::int32_t total[kMaxExperts];
};

/// Places the block's slots. `before` and `total`: rows of expert threadIdx.x in earlier blocks, and in all.
__device__ void place(const TileMapInput& in, const TileMap& map, const LaneSlots& slots, std::int32_t* ranks,
                      Shared& shared, std::int32_t before, std::int32_t total) {
  const int thread = threadIdx.x;
  RowsAndTiles first{};
  RowsAndTiles all{};
  cub::BlockScan<RowsAndTiles, kThreads>(shared.scan)
      .ExclusiveScan(
          RowsAndTiles{total, (total + in.heights.rows - 1) / in.heights.rows}, first, RowsAndTiles{0, 0},
          [](const RowsAndTiles& a, const RowsAndTiles& b) { return a + b; }, all);
  __syncthreads();
  shared.first_row[thread] = first.rows + before;
  shared.first[thread] = first;
  shared.total[thread] = total;
  __syncthreads();
  if (blockIdx.x == 0) {
    if (thread == 0) *map.num_tiles = all.tiles;
    for (int expert = thread / 32; expert < in.num_local_experts; expert += kWarps)
      if (shared.total[expert] > 0)
        write_tiles(in.heights, map.tiles, expert, shared.total[expert], shared.first[expert]);
  }
  std::int32_t* mine = ranks + thread / 32 * in.num_local_experts;
  const int lane = thread % 32;
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    if (!slots.has(r)) break;
    const std::int32_t expert = slots.expert[r];
    const unsigned peers = slots.peers[r];
    const unsigned earlier = peers & ((1U << lane) - 1);
    std::int32_t row = -1;
    if (expert >= 0) row = shared.first_row[expert] + mine[expert] + __popc(earlier);
    __syncwarp();
    if (expert >= 0 && earlier == 0) mine[expert] += __popc(peers);
    __syncwarp();
    if (slots.slot(r) < slots.run.end) map.slot_rows[slots.slot(r)] = row;
    if (row >= 0) map.row_tokens[row] = slots.slot(r) / in.top_k;
  }
}

extern __shared__ std::int32_t warp_counts[];

__global__ void __launch_bounds__(kThreads) tile_map_one_block(TileMapInput in, TileMap map) {
  __shared__ Shared shared;
  // First of all: the next kernel starts up, and waits, while this one works.
  ptx::launch_dependents();
  ptx::wait_for_predecessor();
  const LaneSlots slots(in);
  count_slots(in, slots, warp_counts);
  const std::int32_t total = rank_warps(in, warp_counts);
  __syncthreads();
  place(in, map, slots, warp_counts, shared, 0, total);
}

__global__ void __launch_bounds__(kThreads) tile_map_count(TileMapInput in, TileMap map) {
  ptx::launch_dependents();
  ptx::wait_for_predecessor();
  const LaneSlots slots(in);
  count_slots(in, slots, warp_counts);
  const std::int32_t count = rank_warps(in, warp_counts);
  if (static_cast<int>(threadIdx.x) < in.num_local_experts)
    map.block_counts[static_cast<int>(blockIdx.x) * in.num_local_experts + static_cast<int>(threadIdx.x)] = count;
}

__global__ void __launch_bounds__(kThreads) tile_map_place(TileMapInput in, TileMap map) {
  __shared__ Shared shared;
  ptx::launch_dependents();
  ptx::wait_for_predecessor();
  const LaneSlots slots(in);
  count_slots(in, slots, warp_counts);
  rank_warps(in, warp_counts);
  std::int32_t before = 0;
  std::int32_t total = 0;
  if (static_cast<int>(threadIdx.x) < in.num_local_experts)
#pragma unroll 8
    for (int block = 0; block < static_cast<int>(gridDim.x); ++block) {
      const std::int32_t count = map.block_counts[block * in.num_local_experts + static_cast<int>(threadIdx.x)];
      if (block < static_cast<int>(blockIdx.x)) before += count;
      total += count;
    }
  __syncthreads();
  place(in, map, slots, warp_counts, shared, before, total);
}

/// A block an expert. Each scans all counts by itself, which is less than another launch.
__global__ void __launch_bounds__(kThreads) tile_map_counted(CountedRows in, TileMap map) {
  using Scan = cub::BlockScan<std::int32_t, kThreads>;
  __shared__ Scan::TempStorage scan;
  __shared__ std::int32_t own_rows, first_tile;
  ptx::launch_dependents();
  ptx::wait_for_predecessor();
  const int thread = threadIdx.x;
  const int expert = blockIdx.x;
  const std::int32_t rows = thread < in.num_local_experts ? max(0, min(in.counts[thread], in.max_rows)) : 0;
  std::int32_t first = 0;
  std::int32_t all = 0;
  Scan(scan).ExclusiveSum((rows + in.heights.rows - 1) / in.heights.rows, first, all);
  if (thread == expert) {
    own_rows = rows;
    first_tile = first;
  }
  if (expert == 0 && thread == 0) *map.num_tiles = all;
  __syncthreads();
  const std::int32_t first_row = expert * in.max_rows;
  if (thread < 32 && own_rows > 0) write_tiles(in.heights, map.tiles, expert, own_rows, {first_row, first_tile});
  for (std::int32_t row = thread; row < own_rows; row += kThreads) map.row_tokens[first_row + row] = first_row + row;
}

std::int32_t* take_i32(Arena& arena, std::int64_t count) {
  return arena.take(DType::i32, {count}).as<std::int32_t>();
}

std::int64_t blocks_for(std::int64_t num_slots) {
  return (num_slots + kSlotsPerBlock - 1) / kSlotsPerBlock;
}

}  // namespace

TileMap take_tile_map(Arena& arena, std::int64_t num_slots, std::int64_t num_local_experts, std::int64_t tile_rows) {
  TileMap map;
  // Every expert may have one tile that is not full.
  const std::int64_t tiles = num_slots / tile_rows + std::min(num_slots, num_local_experts);
  map.tiles = reinterpret_cast<TokenTile*>(take_i32(arena, tiles * 4));
  map.num_tiles = take_i32(arena, 1);
  map.row_tokens = take_i32(arena, num_slots);
  map.slot_rows = take_i32(arena, num_slots);
  map.block_counts = take_i32(arena, blocks_for(num_slots) * num_local_experts);
  return map;
}

TileMap take_counted_map(Arena& arena, std::int64_t num_local_experts, std::int64_t max_rows, std::int64_t tile_rows) {
  TileMap map;
  const std::int64_t tiles = num_local_experts * ((max_rows + tile_rows - 1) / tile_rows);
  map.tiles = reinterpret_cast<TokenTile*>(take_i32(arena, tiles * 4));
  map.num_tiles = take_i32(arena, 1);
  map.row_tokens = take_i32(arena, num_local_experts * max_rows);
  return map;
}

void build_counted_map(const CountedRows& input, const TileMap& map, cudaStream_t stream) {
  conclave::cuda::launch(
      "tile_map_counted", tile_map_counted,
      {.grid = {static_cast<unsigned>(input.num_local_experts)}, .block = {kThreads}, .stream = stream}, input, map);
}

void build_tile_map(const TileMapInput& input, const TileMap& map, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(blocks_for(input.num_slots));
  const std::size_t bytes = sizeof(std::int32_t) * kWarps * static_cast<std::size_t>(input.num_local_experts);
  conclave::cuda::Launch launch{.grid = {blocks}, .block = {kThreads}, .shared_bytes = bytes, .stream = stream};
  if (blocks == 1) {
    conclave::cuda::launch("tile_map_one_block", tile_map_one_block, launch, input, map);
    return;
  }
  conclave::cuda::launch("tile_map_count", tile_map_count, launch, input, map);
  conclave::cuda::launch("tile_map_place", tile_map_place, launch, input, map);
}

}  // namespace conclave::experts::cuda
