// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The epilogue of mma_gemm.hpp: sums of one warp in registers -> bias, activation, rounding -> rows of the output. Each
// warp stages 16 tokens at a time in shared memory of its own, so that rows leave in pieces of 16 bytes.
#pragma once

#include <type_traits>

#include "cuda/ptx/matrix.cuh"
#include "experts/cuda/gemm_epilogue.cuh"
#include "experts/cuda/mma_shape.cuh"

namespace conclave::experts::cuda {

template <class Shape, class T>
struct MmaStore {
  /// Of 16 tokens by 16 weight rows: two products, the second of them up rows where there are gates.
  using Tile = float[2][4];

  static constexpr int kShare = Shape::kGated ? 2 : 1;  // Weight rows of one output column.
  static constexpr int kUnits = 2 * Shape::kWeightTiles / kShare;
  static constexpr int kWarpBytes = 16 * kUnits * 16;
  static_assert(kMmaWarps * kWarpBytes <= Shape::kSharedBytes);

  const GroupedGemm& work;
  const GemmItem& item;
  char* staging;  ///< Of this warp.
  MmaWarp<Shape> warp{};

  /// The weight row of the expert at which tile `tile` of this warp begins.
  __device__ int weight_row(int tile) const {
    return item.weight_tile * Shape::kWeightRows + warp.first_weight_row(tile);
  }

  /// Bias of this lane's two columns in the group of 8 weight rows that begins at `row`.
  __device__ float2 bias_of(int row) const {
    if (work.bias == nullptr || row >= work.weight_rows) return {0, 0};
    const float* of_expert = work.bias + static_cast<std::int64_t>(item.expert) * work.weight_rows;
    return *reinterpret_cast<const float2*>(of_expert + row + 2 * (warp.lane % 4));
  }

  /// Columns 2 (lane % 4) and the next of unit `unit`, of the token lane / 4 and of the one 8 further down.
  __device__ void stage(int unit, std::uint32_t upper, std::uint32_t lower) const {
    char* at = staging + 4 * (warp.lane % 4);
    *reinterpret_cast<std::uint32_t*>(at + swizzled<kUnits>(warp.lane / 4, unit)) = upper;
    *reinterpret_cast<std::uint32_t*>(at + swizzled<kUnits>(warp.lane / 4 + 8, unit)) = lower;
  }

  __device__ void stage_tile(const Tile& sums, int tile) const {
    constexpr Epilogue kAfter = Shape::kEpilogue;
    const ActivationFn& fn = work.activation;
    const float2 first = bias_of(weight_row(tile));
    const float2 second = bias_of(weight_row(tile) + 8);
    const float(&a)[4] = sums[0];
    const float(&b)[4] = sums[1];
    if constexpr (Shape::kGated) {
      const auto pair = [&](int i) {
        return ptx::pack2(gated<kAfter>(fn, a[i] + first.x, b[i] + second.x),
                          gated<kAfter>(fn, a[i + 1] + first.y, b[i + 1] + second.y), T{});
      };
      stage(tile, pair(0), pair(2));
    } else {
      const auto pair = [&](const float(&s)[4], float2 bias, int i) {
        return ptx::pack2(plain<kAfter>(fn, s[i] + bias.x), plain<kAfter>(fn, s[i + 1] + bias.y), T{});
      };
      stage(2 * tile, pair(a, first, 0), pair(a, first, 2));
      stage(2 * tile + 1, pair(b, second, 0), pair(b, second, 2));
    }
  }

  /// The staged 16 tokens, the first of which is token `first` of the tile -> rows of the output.
  __device__ void write(int first) const {
    constexpr int kRows = 32 / kUnits;  // That the warp writes at once.
    const int unit = warp.lane % kUnits;
    const std::int32_t column = weight_row(0) / kShare + 8 * unit;
    if (column >= work.weight_rows / kShare) return;
    T* to = static_cast<T*>(work.out) + (item.first_row + first) * work.out_stride + column;
#pragma unroll
    for (int row = warp.lane / kUnits; row < 16; row += kRows)
      if (first + row < item.rows)
        *reinterpret_cast<uint4*>(to + row * work.out_stride) =
            *reinterpret_cast<const uint4*>(staging + swizzled<kUnits>(row, unit));
  }

  /// Rows that are weighted before they are narrowed: f16 cannot hold every sum that a weighted sum can, so they leave
  /// as f32, straight from registers. Four lanes write 32 bytes of one row, a whole sector.
  __device__ void write_f32(const Tile& sums, int first, int tile) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = weight_row(tile) + 8 * half;
      if (row >= work.weight_rows) continue;
      const float2 bias = bias_of(row);
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const int token = first + warp.lane / 4 + 8 * lower;
        if (token >= item.rows) continue;
        float* to =
            static_cast<float*>(work.out) + (item.first_row + token) * work.out_stride + row + 2 * (warp.lane % 4);
        *reinterpret_cast<float2*>(to) = {sums[half][2 * lower] + bias.x, sums[half][2 * lower + 1] + bias.y};
      }
    }
  }

  /// One row of the warp's tiles: 16 tokens, of which `first` is the first.
  __device__ void run(const Tile (&sums)[Shape::kWeightTiles], int first) const {
    if (first >= item.rows) return;
    if constexpr (Shape::kEpilogue == Epilogue::linear && std::is_same_v<T, __half>) {
#pragma unroll
      for (int tile = 0; tile < Shape::kWeightTiles; ++tile) write_f32(sums[tile], first, tile);
    } else {
#pragma unroll
      for (int tile = 0; tile < Shape::kWeightTiles; ++tile) stage_tile(sums[tile], tile);
      __syncwarp();
      write(first);
      // The staging is free once every lane has read its part.
      __syncwarp();
    }
  }
};

}  // namespace conclave::experts::cuda
