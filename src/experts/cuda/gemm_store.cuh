// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The epilogue of the grouped product: sums of one consumer in registers -> bias, activation, rounding -> rows of the
// output, through shared memory so that they leave in pieces of 16 bytes.
#pragma once

#include "cuda/ptx/matrix.cuh"
#include "experts/cuda/gemm_epilogue.cuh"
#include "experts/cuda/gemm_shape.cuh"

namespace conclave::experts::cuda {

template <class Shape, class T>
struct GemmStore {
  static constexpr int kChunks = Shape::kStagedColumns / 8;  // 16-byte chunks of a token: 4 or 8.
  static constexpr int kPerStore = Shape::kGated ? 4 : 2;    // Groups of 8 tokens that four matrices cover.
  static constexpr int kPassGroups = Shape::kPassTokens / 8;
  static constexpr int kGroups = Shape::kTokens / 8;

  /// Chunk `chunk` of token `token` in the staging; permuted so that 8 tokens at one column lie in different banks.
  __device__ static int offset(int token, int chunk) {
    const int turn = kChunks == 8 ? token & 7 : (token >> 1) & 3;
    return token * kChunks * 16 + ((chunk ^ turn) * 16);
  }

  /// Bias of the two weight rows of this thread in the 64-row block that begins at `first`.
  __device__ static float2 bias_of(const GroupedGemm& work, const GemmItem& item, int first) {
    float2 bias{0, 0};
    if (work.bias == nullptr) return bias;
    const int row = first + 16 * (static_cast<int>(threadIdx.x) / 32 % 4) + static_cast<int>(threadIdx.x) % 32 / 4;
    const float* of_expert = work.bias + static_cast<std::int64_t>(item.expert) * work.weight_rows;
    if (row < work.weight_rows) bias.x = of_expert[row];
    if (row + 8 < work.weight_rows) bias.y = of_expert[row + 8];
    return bias;
  }

  /// The registers of token group `j` as matrices, `v[i]` for the i-th of a store.
  __device__ static void pack(const GroupedGemm& work, const float* s, float2 bias, std::uint32_t* v) {
    constexpr Epilogue kAfter = Shape::kEpilogue;
    const ActivationFn& fn = work.activation;
    if constexpr (Shape::kGated) {
      v[0] = ptx::pack2(gated<kAfter>(fn, s[0] + bias.x, s[2] + bias.y),
                        gated<kAfter>(fn, s[1] + bias.x, s[3] + bias.y), T{});
    } else {
      v[0] = ptx::pack2(plain<kAfter>(fn, s[0] + bias.x), plain<kAfter>(fn, s[1] + bias.x), T{});
      v[1] = ptx::pack2(plain<kAfter>(fn, s[2] + bias.y), plain<kAfter>(fn, s[3] + bias.y), T{});
    }
  }

  /// Token groups of pass `kPass` -> staging.
  template <int kPass>
  __device__ static void stage(const GroupedGemm& work, const float* sums, std::uint32_t staging, int rows,
                               float2 bias) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int token = Shape::kGated ? lane : 8 * (lane / 16) + lane % 8;
    const int chunk = Shape::kGated ? warp : 2 * warp + (lane / 8 & 1);
#pragma unroll
    for (int j = 0; j < kPassGroups; j += kPerStore) {
      if (8 * (kPass * kPassGroups + j) >= rows) break;
      std::uint32_t v[4] = {};
#pragma unroll
      for (int i = 0; i < kPerStore; ++i) {
        const int group = kPass * kPassGroups + j + i;
        if (group < kGroups) pack(work, sums + 4 * group, bias, v + (Shape::kGated ? i : 2 * i));
      }
      ptx::stmatrix_x4_transposed(staging + static_cast<std::uint32_t>(offset(8 * j + token, chunk)), v);
    }
  }

  /// Staging of pass `pass` -> rows at `column`, as far as `columns` go.
  __device__ static void write(const GroupedGemm& work, const char* staging, const GemmItem& item, int pass, int column,
                               int columns) {
    const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
    const int chunk = thread % kChunks;
    if (column + 8 * chunk >= columns) return;
    const int first = pass * Shape::kPassTokens;
    T* to = static_cast<T*>(work.out) + (item.first_row + first) * work.out_stride + column + 8 * chunk;
    const int rows = min(Shape::kPassTokens, item.rows - first);
    for (int row = thread / kChunks; row < rows; row += kGroupThreads / kChunks)
      *reinterpret_cast<uint4*>(to + row * work.out_stride) =
          *reinterpret_cast<const uint4*>(staging + offset(row, chunk));
  }

  template <int kPass>
  __device__ static void passes(const GroupedGemm& work, const GemmItem& item, const float* sums, char* staging,
                                int barrier, float2 bias, int first) {
    if constexpr (kPass * Shape::kPassTokens < Shape::kTokens) {
      if (kPass * Shape::kPassTokens >= item.rows) return;
      // The staging is free once every thread has read what it wrote before.
      ptx::named_barrier(barrier, kGroupThreads);
      stage<kPass>(work, sums, ptx::shared_address(staging), item.rows, bias);
      ptx::named_barrier(barrier, kGroupThreads);
      constexpr int kShare = Shape::kGated ? 2 : 1;
      write(work, staging, item, kPass, first / kShare, work.weight_rows / kShare);
      passes<kPass + 1>(work, item, sums, staging, barrier, bias, first);
    }
  }

  /// Rows that are weighted before they are narrowed: f16 cannot hold every sum that a weighted sum can, so they leave
  /// as f32, straight from registers. Eight lanes write 32 bytes of one row, a whole sector.
  template <int kRegisters>
  __device__ static void write_f32(const GroupedGemm& work, const GemmItem& item, const float (&s)[kRegisters],
                                   float2 bias, int first) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = first + 16 * (static_cast<int>(threadIdx.x) / 32 % 4) + lane / 4;
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = 8 * group + 2 * (lane % 4) + i;
        if (token >= item.rows) continue;
        float* to = static_cast<float*>(work.out) + (item.first_row + token) * work.out_stride + row;
        if (row < work.weight_rows) to[0] = s[4 * group + i] + bias.x;
        if (row + 8 < work.weight_rows) to[8] = s[4 * group + 2 + i] + bias.y;
      }
  }

  /// `first`: the weight row at which this consumer's rows begin.
  template <int kRegisters>
  __device__ static void run(const GroupedGemm& work, const GemmItem& item,
                             const float (&sums)[Shape::kBlocks][kRegisters], char* staging, int barrier, int first) {
#pragma unroll
    for (int block = 0; block < Shape::kBlocks; ++block) {
      const int row = first + 64 * block;
      const float2 bias = bias_of(work, item, row);
      if constexpr (Shape::kEpilogue == Epilogue::linear && std::is_same_v<T, __half>)
        write_f32(work, item, sums[block], bias, row);
      else
        passes<0>(work, item, sums[block], staging, barrier, bias, row);
    }
  }
};

}  // namespace conclave::experts::cuda
