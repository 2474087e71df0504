// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What every step of the grouped product of mma_gemm.hpp agrees about: sizes of a variant, which warp has which rows,
// where a 16-byte unit of a row lies in shared memory. The walk over items is gemm_shape.cuh's.
#pragma once

#include "experts/cuda/gemm_shape.cuh"

namespace conclave::experts::cuda {

inline constexpr int kMmaThreads = 128;
inline constexpr int kMmaWarps = kMmaThreads / 32;
/// Columns of K in one stage: 128 bytes of a row, a whole line of the caches. Half a line a copy took 1.3 times as long
/// where weights come from memory.
inline constexpr int kMmaDepth = 64;
inline constexpr int kMmaUnits = kMmaDepth / 8;   // 16-byte units of a row in one stage.
inline constexpr int kMmaSteps = kMmaDepth / 16;  // Products along K in one stage.

/// Byte at which unit `unit` (8 elements of 16 bits) of row `row` lies, for rows of `kUnits` units without gaps. Units
/// are permuted so that one unit of 8 consecutive rows covers all banks, whatever the width of a row.
template <int kUnits>
__device__ constexpr int swizzled(int row, int unit) {
  return (row * kUnits + (unit ^ (row * kUnits / 8 % kUnits))) * 16;
}

/// Sizes that follow from a variant. Tokens are the 16-row operand of the product, weights its columns. TokenWarps: of
/// the four warps, how many share the tokens among them; the others share the weight rows. Blocks: on one
/// multiprocessor.
template <int Tokens, int WeightRows, int Stages, int TokenWarps, int Blocks, Epilogue After>
struct MmaShape {
  static constexpr int kTokens = Tokens;
  static constexpr int kWeightRows = WeightRows;
  static constexpr int kStages = Stages;
  static constexpr int kTokenWarps = TokenWarps;
  static constexpr int kBlocks = Blocks;
  static constexpr int kCluster = 1;
  static constexpr Epilogue kEpilogue = After;
  static constexpr bool kGated = After == Epilogue::swiglu || After == Epilogue::gated;

  /// Of one warp, in 16 rows. Token tiles of the warps alternate, so that a tile with few rows is shared by all of
  /// them.
  static constexpr int kTokenTiles = kTokens / (16 * kTokenWarps);
  static constexpr int kWeightTiles = kWeightRows / (16 * (kMmaWarps / kTokenWarps));

  static constexpr int kTokenBytes = kTokens * kMmaDepth * 2;
  static constexpr int kStageBytes = kTokenBytes + kWeightRows * kMmaDepth * 2;
  static constexpr int kSharedBytes = kStages * kStageBytes;
};

/// Where a warp's rows are in the tile.
template <class Shape>
struct MmaWarp {
  int lane = static_cast<int>(threadIdx.x) % 32;
  int token_warp = static_cast<int>(threadIdx.x) / 32 % Shape::kTokenWarps;
  int weight_warp = static_cast<int>(threadIdx.x) / 32 / Shape::kTokenWarps;

  __device__ int first_token(int tile) const { return 16 * (tile * Shape::kTokenWarps + token_warp); }
  /// Tiles of this warp that begin before the tile's rows end.
  __device__ int token_tiles(int rows) const {
    constexpr int kAll = 16 * Shape::kTokenWarps;
    return (rows - 16 * token_warp + kAll - 1) / kAll;
  }
  __device__ int first_weight_row(int tile) const { return 16 * (weight_warp * Shape::kWeightTiles + tile); }
};

}  // namespace conclave::experts::cuda
