// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The kernel of mma_gemm.hpp. Blocks of four warps are persistent and walk (token tile, weight tile) items. All threads
// fetch stages of K into a ring in shared memory and all multiply; a multiprocessor has several blocks, so that one
// multiplies while another fills its ring or writes.
// Every variant adds products of 16 columns in the order of K, so the bits of a row do not depend on the tile.
#pragma once

#include "cuda/launch.hpp"
#include "cuda/ptx/mma.cuh"
#include "experts/cuda/mma_kinds.hpp"
#include "experts/cuda/mma_load.cuh"
#include "experts/cuda/mma_store.cuh"

namespace conclave::experts::cuda {

/// What one warp multiplies along 16 columns of K: its tokens and its weight rows.
template <class Shape>
struct MmaOperands {
  std::uint32_t tokens[Shape::kTokenTiles][4];
  std::uint32_t weights[Shape::kWeightTiles][4];

  /// Rows of 16 bytes: matrices 0 and 1 of tokens are rows 0 to 15, of weights they are K 0 to 15 (ptx/mma.cuh).
  __device__ void load(const MmaWarp<Shape>& warp, std::uint32_t stage, int step, int token_tiles) {
    // The two units of a step differ in the last bit of the unit, the steps in the bits above.
    const auto flip = static_cast<std::uint32_t>(32 * step);
    constexpr std::uint32_t kTileBytes = 16 * kMmaUnits * 16;
    const auto token =
        static_cast<std::uint32_t>(swizzled<kMmaUnits>(warp.first_token(0) + warp.lane % 16, warp.lane / 16));
#pragma unroll
    for (int i = 0; i < Shape::kTokenTiles; ++i)
      if (i < token_tiles) ptx::ldmatrix_x4(tokens[i], stage + (token ^ flip) + i * Shape::kTokenWarps * kTileBytes);
    const auto weight = static_cast<std::uint32_t>(
        swizzled<kMmaUnits>(warp.first_weight_row(0) + warp.lane / 16 * 8 + warp.lane % 8, warp.lane / 8 % 2));
#pragma unroll
    for (int j = 0; j < Shape::kWeightTiles; ++j)
      ptx::ldmatrix_x4(weights[j], stage + Shape::kTokenBytes + (weight ^ flip) + j * kTileBytes);
  }
};

template <class Shape, class T>
struct MmaItem {
  using Store = MmaStore<Shape, T>;

  const GroupedGemm& work;
  const void* weights;
  const GemmItem& item;
  char* memory;

  using Sums = typename Store::Tile[Shape::kTokenTiles][Shape::kWeightTiles];

  /// sums += tokens . weights along 16 columns of K. Tiles without a token are left out, the same for all lanes.
  __device__ static void multiply(Sums& sums, const MmaOperands<Shape>& now, int token_tiles) {
#pragma unroll
    for (int i = 0; i < Shape::kTokenTiles; ++i)
      if (i < token_tiles)
#pragma unroll
        for (int j = 0; j < Shape::kWeightTiles; ++j)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            ptx::mma_16x8x16(sums[i][j][half], now.tokens[i], now.weights[j][2 * half], now.weights[j][2 * half + 1],
                             T{});
  }

  /// sums = tokens . weights over all of K.
  __device__ void multiply_all(Sums& sums) const {
    const MmaLoad<Shape> load(work, weights, item);
    const MmaWarp<Shape> warp;
    const std::uint32_t base = ptx::shared_address(memory);
    const auto stage = [&](int slot) { return base + static_cast<std::uint32_t>(slot * Shape::kStageBytes); };
    const int steps = (work.depth + kMmaDepth - 1) / kMmaDepth;
    // A group is committed for every stage, also for those beyond K, so that counting groups is counting stages.
#pragma unroll
    for (int s = 0; s < Shape::kStages - 1; ++s) {
      if (s < steps) load.copy(stage(s), s);
      ptx::cp_async_commit();
    }
    const int token_tiles = warp.token_tiles(item.rows);
    MmaOperands<Shape> operands[2];
    ptx::cp_async_wait<Shape::kStages - 2>();
    __syncthreads();
    operands[0].load(warp, stage(0), 0, token_tiles);
    int read = 0;
    int fill = Shape::kStages - 1;
    for (int step = 0; step < steps; ++step) {
#pragma unroll 1
      for (int k = 0; k < kMmaSteps; k += 2) {
        operands[1].load(warp, stage(read), k + 1, token_tiles);
        if (k == 0) {
          if (step + Shape::kStages - 1 < steps) load.copy(stage(fill), step + Shape::kStages - 1);
          ptx::cp_async_commit();
          if (++fill == Shape::kStages) fill = 0;
        }
        multiply(sums, operands[0], token_tiles);
        const bool last = k + 2 == kMmaSteps;
        if (last) {
          // The next stage has landed, and every warp has read this one into registers. After the last stage of K the
          // operands are whatever lies there, and nobody multiplies them.
          ptx::cp_async_wait<Shape::kStages - 2>();
          __syncthreads();
          if (++read == Shape::kStages) read = 0;
        }
        operands[0].load(warp, stage(read), last ? 0 : k + 2, token_tiles);
        multiply(sums, operands[1], token_tiles);
      }
    }
  }

  __device__ void run() const {
    Sums sums = {};
    multiply_all(sums);
    // The staging lies over the ring.
    __syncthreads();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const Store store{work, item, memory + warp * Store::kWarpBytes};
#pragma unroll
    for (int i = 0; i < Shape::kTokenTiles; ++i) store.run(sums[i], store.warp.first_token(i));
    __syncthreads();
  }
};

template <class Shape, class T>
__global__ void __launch_bounds__(kMmaThreads, Shape::kBlocks)
    mma_gemm_kernel(const void* weights, const GroupedGemm work) {
  extern __shared__ __align__(128) char memory[];
  ptx::wait_for_predecessor();
  ptx::launch_dependents();
  for_each_item<Shape>(work, [&](const GemmItem& item, int) { MmaItem<Shape, T>{work, weights, item, memory}.run(); });
}

template <class Shape, class T>
bool start_mma(const GroupedProduct& p) {
  conclave::cuda::launch("mma_gemm", mma_gemm_kernel<Shape, T>,
                         {.grid = {static_cast<unsigned>(p.num_multiprocessors * Shape::kBlocks)},
                          .block = {kMmaThreads},
                          .shared_bytes = Shape::kSharedBytes,
                          .stream = p.stream},
                         p.weights, p.work);
  return true;
}

/// The variants of one kind, by tile; false: there is none. Blocks and stages are what 164 KiB of shared memory and
/// 65536 registers of an A100 hold; a GPU with less memory runs fewer blocks at a time. Wide tiles do with two stages:
/// two blocks of two took two thirds of the time of one block of four.
template <Epilogue kEpilogue, class T>
bool start_mma_narrow(const GroupedProduct& p, GemmTile tile) {
  if (tile == GemmTile{16, 64, 1}) return start_mma<MmaShape<16, 64, 4, 1, 4, kEpilogue>, T>(p);
  if (tile == GemmTile{64, 128, 1}) return start_mma<MmaShape<64, 128, 3, 2, 2, kEpilogue>, T>(p);
  return false;
}
template <Epilogue kEpilogue, class T>
bool start_mma_wide(const GroupedProduct& p, GemmTile tile) {
  if (tile == GemmTile{128, 128, 1}) return start_mma<MmaShape<128, 128, 2, 2, 2, kEpilogue>, T>(p);
  return false;
}

}  // namespace conclave::experts::cuda
