// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The kernel of grouped_gemm.hpp. Three warpgroups: one fetches stages of 64 columns of K into a ring in shared memory,
// two multiply and write. Blocks are persistent and walk (token tile, weight tile) items.
#pragma once

#include "cuda/launch.hpp"
#include "cuda/ptx/wgmma.cuh"
#include "experts/cuda/gemm_load.cuh"
#include "experts/cuda/gemm_shape.cuh"
#include "experts/cuda/gemm_store.cuh"
#include "experts/cuda/gemm_token_rows.cuh"

namespace conclave::experts::cuda {

template <class Shape, class T>
struct GemmConsumer {
  using Store = GemmStore<Shape, T>;
  using Sums = float[Shape::kBlocks][Shape::kTokens / 2];

  const GroupedGemm& work;
  const GemmMemory& m;
  int consumer;
  RingPosition<Shape::kStages> at{};

  /// sums = weights . tokens over all of K, in the first kN columns of the token tile.
  template <int kN>
  __device__ void multiply(Sums& sums) {
    const int part = Shape::kPingPong ? 0 : consumer;
    const int steps = steps_of(work);
    int previous = 0;
    for (int step = 0; step < steps; ++step) {
      ptx::mbarrier_wait(&m.full[at.slot], at.phase);
      // What cp.async wrote is ordinary memory to the tensor cores' view of it.
      if constexpr (Shape::kGather) ptx::fence_async_proxy();
      const char* stage = m.stages + at.slot * Shape::kStageBytes;
      const std::uint64_t weights = ptx::wgmma_descriptor(stage + part * Shape::kConsumerRows * kRowBytes);
      const std::uint64_t tokens = ptx::wgmma_descriptor(stage + Shape::kWeightBytes);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kStageDepth / 16; ++k)
#pragma unroll
        for (int block = 0; block < Shape::kBlocks; ++block)
          // 16 elements of K are 32 bytes, 2 units of a descriptor; 64 rows are 8192 bytes, 512 units.
          ptx::Wgmma<kN, T>::apply(sums[block], weights + 512 * block + 2 * k, tokens + 2 * k, step > 0 || k > 0);
      ptx::wgmma_commit();
      // One group stays under way, so the slot before this one is free.
      ptx::wgmma_wait<1>();
      if (step > 0) release<Shape::kCluster>(&m.empty[previous]);
      previous = at.slot;
      at.next();
    }
    if constexpr (Shape::kPingPong) give_turn_to(1 - consumer);
    ptx::wgmma_wait<0>();
    release<Shape::kCluster>(&m.empty[previous]);
  }

  /// The smallest compiled width of wgmma that covers the rows: padding costs no arithmetic beyond it. Widths below 32
  /// do not pay where tiles are wide, since then a tile takes as long as its weights.
  __device__ void multiply_rows(Sums& sums, int rows) {
    if constexpr (Shape::kTokens >= 128) {
      if (rows <= 32) return multiply<32>(sums);
      if (rows <= 64) return multiply<64>(sums);
      if (rows <= 72) return multiply<72>(sums);
      if (rows <= 80) return multiply<80>(sums);
      if (rows <= 96) return multiply<96>(sums);
      if (rows <= 112) return multiply<112>(sums);
    } else {
      if constexpr (Shape::kTokens > 8)
        if (rows <= 8) return multiply<8>(sums);
      if constexpr (Shape::kTokens > 16)
        if (rows <= 16) return multiply<16>(sums);
      if constexpr (Shape::kTokens > 32)
        if (rows <= 32) return multiply<32>(sums);
    }
    multiply<Shape::kTokens>(sums);
  }

  /// A block without rows lets every stage pass: its partner fetches into its memory too.
  __device__ void pass() {
    for (int step = 0; step < steps_of(work); ++step) {
      ptx::mbarrier_wait(&m.full[at.slot], at.phase);
      release<Shape::kCluster>(&m.empty[at.slot]);
      at.next();
    }
    if constexpr (Shape::kPingPong) give_turn_to(1 - consumer);
  }

  __device__ void run() {
    char* staging = m.staging + consumer * Shape::kStagingBytes;
    if (Shape::kPingPong && consumer == 1) give_turn_to(0);
    for_each_item<Shape>(work, [&](const GemmItem& item, int number) {
      if (Shape::kPingPong && number % 2 != consumer) return at.skip(steps_of(work));
      if constexpr (Shape::kPingPong) wait_for_turn(consumer);
      if (Shape::kCluster > 1 && item.rows == 0) return pass();
      Sums sums;
      multiply_rows(sums, item.rows);
      Store::run(work, item, sums, staging, kOwnBarrier + consumer,
                 item.weight_tile * Shape::kWeightRows + (Shape::kPingPong ? 0 : consumer * Shape::kConsumerRows));
    });
  }
};

template <class Shape, class T>
__global__ void __launch_bounds__(kGemmThreads, 1)
    grouped_gemm_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap tokens,
                        const GroupedGemm work) {
  extern __shared__ char raw[];
  const GemmMemory m = carve<Shape>(raw);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&weights);
    if (!Shape::kGather) ptx::prefetch_tensor_map(&tokens);
    for (int s = 0; s < Shape::kStages; ++s) {
      // By the copy engine one thread arrives; with a gather each of the 128 does, once its copies have landed.
      ptx::mbarrier_init(&m.full[s], Shape::kGather ? kGroupThreads + 1 : 1);
      ptx::mbarrier_init(&m.empty[s], Shape::kReaders);
    }
    ptx::mbarrier_init_fence();
  }
  // The partner's copies and arrivals must find the barriers ready.
  if constexpr (Shape::kCluster > 1)
    ptx::cluster_sync();
  else
    __syncthreads();
  // The block starts with 168 registers a thread, which is 64512 = 56 x 128 + 224 x 256; asking for more would wait for
  // ever. A gather keeps a row number and an address for each pass, a consumer of three 64-row blocks by 128 tokens 192
  // sums.
  if (threadIdx.x < kGroupThreads) {
    ptx::registers_down<56>();
    const GemmLoad<Shape> load{weights, tokens, work, m};
    if constexpr (Shape::kGather)
      load.gather();
    else if (threadIdx.x == 0)
      load.fetch();
  } else {
    ptx::registers_up<224>();
    if constexpr (Shape::kGather) ptx::wait_for_predecessor();
    const int consumer = static_cast<int>(threadIdx.x) / kGroupThreads - 1;
    if constexpr (Shape::kTokenRows)
      TokenRowsConsumer<Shape, T>{work, m, consumer}.run();
    else
      GemmConsumer<Shape, T>{work, m, consumer}.run();
  }
  // Nor may a block write to, or arrive at, a partner that has ended.
  if constexpr (Shape::kCluster > 1) {
    __syncwarp();
    ptx::cluster_sync();
  }
}

template <class Shape, class T>
bool start_gemm(const CUtensorMap& weights, const CUtensorMap& tokens, const GroupedGemm& work, int max_blocks,
                cudaStream_t stream) {
  conclave::cuda::launch("grouped_gemm", grouped_gemm_kernel<Shape, T>,
                         {.grid = {static_cast<unsigned>(max_blocks / Shape::kCluster * Shape::kCluster)},
                          .block = {kGemmThreads},
                          .shared_bytes = Shape::kSharedBytes,
                          .stream = stream,
                          .cluster = Shape::kCluster},
                         weights, tokens, work);
  return true;
}

/// The variants of one kind, by tile; false: there is none. Each kind is compiled in a file of its own.
template <Epilogue kEpilogue, bool kGather, class T>
bool start_narrow(const CUtensorMap& weights, const CUtensorMap& tokens, const GroupedGemm& work, GemmTile tile,
                  int max_blocks, cudaStream_t stream) {
  const auto start = [&]<class Shape>(Shape) {
    return start_gemm<Shape, T>(weights, tokens, work, max_blocks, stream);
  };
  if (tile == GemmTile{8, 64, 1}) return start(GemmShape<8, 1, 1, true, kEpilogue, kGather>{});
  if (tile == GemmTile{8, 128, 1}) return start(GemmShape<8, 1, 1, false, kEpilogue, kGather>{});
  if (tile == GemmTile{16, 128, 1}) return start(GemmShape<16, 1, 1, false, kEpilogue, kGather>{});
  if (tile == GemmTile{32, 128, 1}) return start(GemmShape<32, 1, 1, false, kEpilogue, kGather>{});
  if (tile == GemmTile{64, 128, 1}) return start(GemmShape<64, 1, 1, false, kEpilogue, kGather>{});
  return false;
}

/// Tiles of 128 tokens as rows.
template <Epilogue kEpilogue, bool kGather, class T>
bool start_token_rows(const CUtensorMap& weights, const CUtensorMap& tokens, const GroupedGemm& work, GemmTile tile,
                      int max_blocks, cudaStream_t stream) {
  if (tile != GemmTile{128, 256, 2, true}) return false;
  return start_gemm<TokenRowsShape<kEpilogue, kGather>, T>(weights, tokens, work, max_blocks, stream);
}

template <Epilogue kEpilogue, bool kGather, class T>
bool start_wide(const CUtensorMap& weights, const CUtensorMap& tokens, const GroupedGemm& work, GemmTile tile,
                int max_blocks, cudaStream_t stream) {
  const auto start = [&]<class Shape>(Shape) {
    return start_gemm<Shape, T>(weights, tokens, work, max_blocks, stream);
  };
  // Pairs of blocks take sorted rows, and gated rows are sorted for nothing else (choose.cpp).
  constexpr bool kLinear = kEpilogue == Epilogue::linear;
  if constexpr (kLinear || kGather) {
    if (tile == GemmTile{128, 128, 1}) return start(GemmShape<128, 1, 1, false, kEpilogue, kGather>{});
    if (tile == GemmTile{128, 256, 1}) return start(GemmShape<128, 2, 1, false, kEpilogue, kGather>{});
  }
  if constexpr (!kGather)
    if (tile == GemmTile{128, 192, 2}) return start(GemmShape<128, 3, 2, true, kEpilogue, kGather>{});
  return false;
}

}  // namespace conclave::experts::cuda
