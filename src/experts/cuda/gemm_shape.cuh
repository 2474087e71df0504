// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What every role of the grouped product agrees about: sizes of a variant, the ring of stages, the walk over items.
#pragma once

#include <type_traits>

#include "cuda/ptx/control.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "experts/cuda/grouped_gemm.hpp"

namespace conclave::experts::cuda {

namespace ptx = conclave::cuda::ptx;

inline constexpr int kGroupThreads = 128;               // A warpgroup.
inline constexpr int kGemmThreads = 3 * kGroupThreads;  // Producer, consumer, consumer.
inline constexpr int kSharedLimit = 227 * 1024;         // What a block of sm_90 may have.
inline constexpr int kRowBytes = kStageDepth * 2;       // One row of a stage, the width of the swizzle.

/// Sizes that follow from a variant. Tokens: columns of wgmma. Blocks: 64-row blocks of weights for each consumer.
/// Cluster: blocks that share weights. PingPong: consumers take turns with whole items, so that one multiplies while
/// the other writes; else both share an item and each has its half of the weight rows.
template <int Tokens, int Blocks, int Cluster, bool PingPong, Epilogue After, bool Gather>
struct GemmShape {
  static constexpr int kTokens = Tokens;
  static constexpr int kBlocks = Blocks;
  static constexpr int kCluster = Cluster;
  static constexpr bool kPingPong = PingPong;
  static constexpr Epilogue kEpilogue = After;
  static constexpr bool kGated = After == Epilogue::swiglu || After == Epilogue::gated;
  static constexpr bool kGather = Gather;
  static constexpr bool kTokenRows = false;

  static constexpr int kConsumerRows = 64 * kBlocks;
  static constexpr int kWeightRows = kPingPong ? kConsumerRows : 2 * kConsumerRows;
  static constexpr int kBoxRows = kWeightRows / kCluster;  // What one block of a cluster fetches for all of them.
  static constexpr int kWeightBytes = kWeightRows * kRowBytes;
  static constexpr int kTokenBytes = kTokens * kRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kTokenBytes;
  /// Warps that must have read a stage before it is filled again.
  static constexpr int kReaders = kCluster * (kPingPong ? 1 : 2) * kGroupThreads / 32;

  /// One pass of the epilogue stages one 64-row block: 64 columns of the output, 32 where gate and up become one. Four
  /// matrices of 8 x 8 leave registers at a time, whether or not the tile has tokens for all of them.
  static constexpr int kStagedColumns = kGated ? 32 : 64;
  static constexpr int kPassTokens = kGated         ? (kTokens > 32 ? kTokens : 32)
                                     : kTokens > 64 ? 64
                                     : kTokens > 16 ? kTokens
                                                    : 16;
  static constexpr int kStagingBytes = kPassTokens * kStagedColumns * 2;

  /// As many stages as fit beside the staging, one KiB of alignment and the barriers; more than 12 buy nothing.
  static constexpr int kRoom = (kSharedLimit - 2 * kStagingBytes - 1024 - 256) / kStageBytes;
  static constexpr int kStages = kRoom > 12 ? 12 : kRoom;
  static constexpr int kSharedBytes = 1024 + kStages * kStageBytes + 2 * kStagingBytes + 2 * 8 * kStages;
};

/// Sizes of a tile of 128 tokens by 256 weight rows whose tokens are the 64-row operand: each consumer has 64 of them
/// and all the weights, which a pair of blocks shares. Such a product reads 10 KiB of shared memory in 128 cycles; with
/// the weights as that operand and 128 tokens it is 12 KiB. What is saved is power, and so clock: where every tile is
/// full. Where it is not, a tile takes as long for 65 tokens as for 128.
template <Epilogue After, bool Gather>
struct TokenRowsShape {
  static constexpr int kTokens = 128;
  static constexpr int kCluster = 2;
  static constexpr Epilogue kEpilogue = After;
  static constexpr bool kGated = After == Epilogue::swiglu;
  static constexpr bool kGather = Gather;
  static constexpr bool kTokenRows = true;

  static constexpr int kConsumerTokens = 64;
  static constexpr int kWeightRows = 256;
  static constexpr int kBoxRows = kWeightRows / kCluster;
  static constexpr int kWeightBytes = kWeightRows * kRowBytes;
  static constexpr int kTokenBytes = kTokens * kRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kTokenBytes;
  static constexpr int kReaders = kCluster * 2 * kGroupThreads / 32;

  /// One pass of the epilogue stages 64 columns of the output for a consumer's tokens.
  static constexpr int kColumns = kGated ? kWeightRows / 2 : kWeightRows;
  static constexpr int kPassColumns = 64;
  static constexpr int kStagingBytes = kConsumerTokens * kPassColumns * 2;
  static constexpr int kStages = (kSharedLimit - 2 * kStagingBytes - 1024 - 256) / kStageBytes;
  static constexpr int kSharedBytes = 1024 + kStages * kStageBytes + 2 * kStagingBytes + 2 * 8 * kStages;
};

/// One item: which rows, whose weights, which of their rows. Rows may be none in the second block of a cluster.
struct GemmItem {
  std::int32_t expert, first_row, rows, weight_tile;
};

/// Inside a group the token tile varies fastest: blocks that run at the same time share weights through L2, and a
/// weight tile comes from memory once.
template <class Shape>
__device__ inline GemmItem item_at(const TokenTile* tiles, std::int32_t index, std::int32_t weight_tiles) {
  const TokenTile any = tiles[index / weight_tiles];
  const std::int32_t within = index - any.group_first * weight_tiles;
  // A group of one saves a dependent load where latency is all there is.
  const TokenTile tile = any.group_size() == 1 ? any : tiles[any.group_first + within % any.group_size()];
  GemmItem item{tile.expert(), tile.first_row, tile.rows, within / any.group_size()};
  if constexpr (Shape::kCluster == 2) {
    // As the tile map does it: equal parts, or a full one and the rest.
    const std::int32_t half = Shape::kTokenRows ? min(tile.rows, Shape::kTokens) : (tile.rows + 1) / 2;
    const bool second = ptx::cluster_rank() == 1;
    item.first_row += second ? half : 0;
    item.rows = second ? tile.rows - half : half;
  }
  return item;
}

/// body(item, number of the item in this block): every (grid / cluster)-th item, from the cluster's own on.
template <class Shape, class Body>
__device__ inline void for_each_item(const GroupedGemm& work, Body&& body) {
  const std::int32_t weight_tiles = (work.weight_rows + Shape::kWeightRows - 1) / Shape::kWeightRows;
  const std::int32_t items = *work.num_tiles * weight_tiles;
  const auto stride = static_cast<std::int32_t>(gridDim.x / Shape::kCluster);
  std::int32_t number = 0;
  for (std::int32_t i = static_cast<std::int32_t>(blockIdx.x) / Shape::kCluster; i < items; i += stride, ++number)
    body(item_at<Shape>(work.tiles, i, weight_tiles), number);
}

__device__ inline int steps_of(const GroupedGemm& work) {
  return (work.depth + kStageDepth - 1) / kStageDepth;
}

/// Position in the ring: slot and how often it has been used, as the parity that barriers count by.
template <int kStages>
struct RingPosition {
  int slot = 0;
  std::uint32_t phase = 0;
  __device__ void next() {
    if (++slot == kStages) {
      slot = 0;
      phase ^= 1;
    }
  }
  __device__ void skip(int steps) {
    slot += steps;
    phase ^= static_cast<std::uint32_t>(slot / kStages) & 1U;
    slot %= kStages;
  }
};

/// Shared memory of a block.
struct GemmMemory {
  char* stages;
  char* staging;  // Of both consumers.
  std::uint64_t* full;
  std::uint64_t* empty;
};

template <class Shape>
__device__ GemmMemory carve(char* raw) {
  GemmMemory m;
  // Swizzled tiles begin at multiples of 1024 bytes.
  m.stages = raw + (1024 - ptx::shared_address(raw) % 1024) % 1024;
  m.staging = m.stages + Shape::kStages * Shape::kStageBytes;
  m.full = reinterpret_cast<std::uint64_t*>(m.staging + 2 * Shape::kStagingBytes);
  m.empty = m.full + Shape::kStages;
  return m;
}

/// Named barriers: 1 and 2 are the consumers' own, 3 and 4 the turns of ping-pong.
inline constexpr int kOwnBarrier = 1;
inline constexpr int kTurnBarrier = 3;

/// Turns. A consumer may only look at the ring once the other has seen its last stage there: the parity of a barrier
/// tells two neighbouring uses of a slot apart, no more.
__device__ inline void wait_for_turn(int consumer) {
  ptx::named_barrier(kTurnBarrier + consumer, 2 * kGroupThreads);
}
__device__ inline void give_turn_to(int consumer) {
  ptx::named_barrier_arrive(kTurnBarrier + consumer, 2 * kGroupThreads);
}

/// One warp has read a slot for the last time: says so to every block that fetches into it.
template <int kCluster>
__device__ inline void release(std::uint64_t* empty) {
  const auto lane = static_cast<std::uint32_t>(threadIdx.x) % 32;
  if constexpr (kCluster == 1) {
    if (lane == 0) ptx::mbarrier_arrive(empty);
  } else {
    if (lane < kCluster) ptx::mbarrier_arrive_remote(empty, lane);
  }
}

template <int kValue>
using Constant = std::integral_constant<int, kValue>;

}  // namespace conclave::experts::cuda
