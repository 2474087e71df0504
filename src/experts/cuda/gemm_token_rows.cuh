// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A consumer of the grouped product whose 64-row operand are tokens (TokenRowsShape): stages of the ring -> sums of 64
// tokens by 256 weight rows -> bias, activation, rounding -> rows of the output. For tiles full of tokens.
#pragma once

#include "cuda/ptx/matrix.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "experts/cuda/gemm_epilogue.cuh"
#include "experts/cuda/gemm_shape.cuh"

namespace conclave::experts::cuda {

/// The epilogue. Each warp stages and writes its own 16 tokens, so no warp waits for another.
template <class Shape, class T>
struct TokenRowsStore {
  using Sums = float[Shape::kWeightRows / 2];
  static constexpr int kChunks = Shape::kPassColumns / 8;  // 16-byte chunks of a token in one pass.
  static constexpr int kColumns = Shape::kColumns;
  static constexpr int kWarpBytes = Shape::kStagingBytes / 4;

  /// Chunk `chunk` of token `token` in a warp's staging; permuted so that 8 tokens at one column lie in different
  /// banks.
  __device__ static std::uint32_t offset(int token, int chunk) {
    return static_cast<std::uint32_t>(token * kChunks * 16 + ((chunk ^ (token & 7)) * 16));
  }

  /// Before anything else, and in place: sums that wait with their biases would not fit into the registers.
  __device__ static void add_bias(const GroupedGemm& work, const GemmItem& item, Sums& sums) {
    if (work.bias == nullptr) return;
    const float* of_expert = work.bias + static_cast<std::int64_t>(item.expert) * work.weight_rows;
    const int first = item.weight_tile * Shape::kWeightRows + 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int group = 0; group < Shape::kWeightRows / 8; ++group) {
      if (first + 8 * group >= work.weight_rows) continue;
      const float2 bias = *reinterpret_cast<const float2*>(of_expert + first + 8 * group);
      sums[4 * group] += bias.x;
      sums[4 * group + 1] += bias.y;
      sums[4 * group + 2] += bias.x;
      sums[4 * group + 3] += bias.y;
    }
  }

  /// Eight columns of the output, the chunk-th of the tile, as two matrices: tokens 0 to 7 of the warp, and 8 to 15.
  __device__ static void pack(const GroupedGemm& work, const Sums& sums, int chunk, std::uint32_t* v) {
    const ActivationFn& fn = work.activation;
    if constexpr (Shape::kGated) {
      const float* g = sums + 8 * chunk;  // Gate and up rows alternate in groups of 8.
      const float* u = g + 4;
      v[0] = ptx::pack2(swiglu(fn, g[0], u[0]), swiglu(fn, g[1], u[1]), T{});
      v[1] = ptx::pack2(swiglu(fn, g[2], u[2]), swiglu(fn, g[3], u[3]), T{});
    } else {
      const float* s = sums + 4 * chunk;
      v[0] = ptx::pack2(s[0], s[1], T{});
      v[1] = ptx::pack2(s[2], s[3], T{});
    }
  }

  /// Rows that are weighted before they are narrowed leave as f32 (GemmStore::write_f32): four lanes write a sector.
  __device__ static void write_f32(const GroupedGemm& work, const GemmItem& item, const Sums& sums, int first_token) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int group = 0; group < Shape::kWeightRows / 8; ++group) {
      const int column = item.weight_tile * Shape::kWeightRows + 8 * group + 2 * (lane % 4);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = first_token + lane / 4 + 8 * half;
        if (token >= item.rows || column >= work.weight_rows) continue;
        float* to = static_cast<float*>(work.out) + (item.first_row + token) * work.out_stride + column;
        *reinterpret_cast<float2*>(to) = float2{sums[4 * group + 2 * half], sums[4 * group + 2 * half + 1]};
      }
    }
  }

  /// Columns of pass `kPass` -> staging -> memory.
  template <int kPass>
  __device__ static void passes(const GroupedGemm& work, const GemmItem& item, const Sums& sums, char* staging,
                                int first_token) {
    if constexpr (kPass * Shape::kPassColumns < kColumns) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      const std::uint32_t base = ptx::shared_address(staging);
#pragma unroll
      for (int c = 0; c < kChunks; c += 2) {
        std::uint32_t v[4];
        pack(work, sums, kPass * kChunks + c, v);
        pack(work, sums, kPass * kChunks + c + 1, v + 2);
        ptx::stmatrix_x4(base + offset(lane % 16, c + lane / 16), v);
      }
      __syncwarp();
      const int chunk = lane % kChunks;
      const std::int32_t column = item.weight_tile * kColumns + kPass * Shape::kPassColumns + 8 * chunk;
      constexpr int kShare = Shape::kGated ? 2 : 1;
      if (column < work.weight_rows / kShare) {
        T* to = static_cast<T*>(work.out) + (item.first_row + first_token) * work.out_stride + column;
#pragma unroll 1
        for (int row = lane / kChunks; row < 16; row += 32 / kChunks)
          if (first_token + row < item.rows)
            *reinterpret_cast<uint4*>(to + row * work.out_stride) =
                *reinterpret_cast<const uint4*>(staging + offset(row, chunk));
      }
      __syncwarp();
      passes<kPass + 1>(work, item, sums, staging, first_token);
    }
  }

  /// `first_token`: the tile's token at which this warp's 16 begin.
  __device__ static void run(const GroupedGemm& work, const GemmItem& item, Sums& sums, char* staging,
                             int first_token) {
    if (first_token >= item.rows) return;
    add_bias(work, item, sums);
    if constexpr (Shape::kEpilogue == Epilogue::linear && std::is_same_v<T, __half>)
      write_f32(work, item, sums, first_token);
    else
      passes<0>(work, item, sums, staging, first_token);
  }
};

template <class Shape, class T>
struct TokenRowsConsumer {
  using Store = TokenRowsStore<Shape, T>;

  const GroupedGemm& work;
  const GemmMemory& m;
  int consumer;
  RingPosition<Shape::kStages> at{};

  /// The second consumer begins when the first has read this many stages. From then on it stays behind, so that one
  /// multiplies while the other writes; a ring of four leaves it no more room.
  static constexpr int kHeadStart = 2;
  static constexpr int kHeadStartBarrier = 5;

  /// sums = tokens . weights over all of K. `leads`: the other consumer waits for the head start.
  __device__ void multiply(typename Store::Sums& sums, bool leads) {
    const int steps = steps_of(work);
    int previous = 0;
    for (int step = 0; step < steps; ++step) {
      ptx::mbarrier_wait(&m.full[at.slot], at.phase);
      // What cp.async wrote is ordinary memory to the tensor cores' view of it.
      if constexpr (Shape::kGather) ptx::fence_async_proxy();
      const char* stage = m.stages + at.slot * Shape::kStageBytes;
      const std::uint64_t weights = ptx::wgmma_descriptor(stage);
      const std::uint64_t tokens =
          ptx::wgmma_descriptor(stage + Shape::kWeightBytes + consumer * Shape::kConsumerTokens * kRowBytes);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kStageDepth / 16; ++k)
        ptx::Wgmma<Shape::kWeightRows, T>::apply(sums, tokens + 2 * k, weights + 2 * k, step > 0 || k > 0);
      ptx::wgmma_commit();
      // One group stays under way, so the slot before this one is free.
      ptx::wgmma_wait<1>();
      if (step > 0) release<Shape::kCluster>(&m.empty[previous]);
      if (leads && step == min(kHeadStart, steps - 1)) ptx::named_barrier_arrive(kHeadStartBarrier, 2 * kGroupThreads);
      previous = at.slot;
      at.next();
    }
    ptx::wgmma_wait<0>();
    release<Shape::kCluster>(&m.empty[previous]);
  }

  /// A consumer without tokens lets every stage pass.
  __device__ void pass(bool leads) {
    if (leads) ptx::named_barrier_arrive(kHeadStartBarrier, 2 * kGroupThreads);
    for (int step = 0; step < steps_of(work); ++step) {
      ptx::mbarrier_wait(&m.full[at.slot], at.phase);
      release<Shape::kCluster>(&m.empty[at.slot]);
      at.next();
    }
  }

  __device__ void run() {
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    char* staging = m.staging + consumer * Shape::kStagingBytes + warp * Store::kWarpBytes;
    const int first_token = consumer * Shape::kConsumerTokens;
    for_each_item<Shape>(work, [&](const GemmItem& item, int number) {
      const bool leads = number == 0 && consumer == 0;
      if (number == 0 && consumer == 1) ptx::named_barrier(kHeadStartBarrier, 2 * kGroupThreads);
      if (item.rows <= first_token) return pass(leads);
      typename Store::Sums sums;
      multiply(sums, leads);
      Store::run(work, item, sums, staging, first_token + 16 * warp);
    });
  }
};

}  // namespace conclave::experts::cuda
