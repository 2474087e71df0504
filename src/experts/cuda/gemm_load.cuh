// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The producer of the grouped product: items -> stages of the ring, weights by the copy engine, tokens by it too where
// they are sorted, else by cp.async through the list of rows.
#pragma once

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/tma.cuh"
#include "experts/cuda/gemm_shape.cuh"

namespace conclave::experts::cuda {

/// Rows of tokens -> one stage, by 128 threads: thread t copies 16-byte chunk t % 8 of rows t / 8, t / 8 + 16, ...
template <int kTokens>
struct TokenGather {
  static constexpr int kRowsPerPass = kGroupThreads / 8;
  static constexpr int kPasses = (kTokens + kRowsPerPass - 1) / kRowsPerPass;
  std::int32_t token[kPasses];  // -1: no row, nothing to copy.

  __device__ void locate(const GroupedGemm& work, const GemmItem& item) {
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
      const int row = static_cast<int>(threadIdx.x) / 8 + p * kRowsPerPass;
      token[p] = row < item.rows ? work.row_tokens[item.first_row + row] : -1;
    }
  }

  __device__ void copy(const GroupedGemm& work, std::uint32_t to_shared, std::int32_t k) const {
    const int chunk = static_cast<int>(threadIdx.x) % 8;
    const std::int32_t column = k + 8 * chunk;
    // Beyond K zeros are needed, not just anything: the weights are zero there, but 0 * NaN is not.
    const std::uint32_t bytes = column < work.depth ? 16 : 0;
    const char* base = static_cast<const char*>(work.tokens) + (bytes == 0 ? 0 : 2 * column);
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
      const int row = static_cast<int>(threadIdx.x) / 8 + p * kRowsPerPass;
      if (token[p] >= 0)
        ptx::cp_async_16(to_shared + static_cast<std::uint32_t>(row * kRowBytes + ((chunk ^ (row & 7)) * 16)),
                         base + 2 * (token[p] * work.token_stride), bytes);
    }
  }
};

template <class Shape>
struct GemmLoad {
  const CUtensorMap& weights;
  const CUtensorMap& tokens;
  const GroupedGemm& work;
  const GemmMemory& m;

  /// Requests the weights of one stage; the barrier also expects the tokens where they come by the copy engine.
  __device__ void request_weights(int slot, const GemmItem& item, int step) const {
    ptx::mbarrier_arrive_expect(&m.full[slot], Shape::kWeightBytes + (Shape::kGather ? 0 : Shape::kTokenBytes));
    char* to = m.stages + slot * Shape::kStageBytes;
    const std::int32_t row = item.weight_tile * Shape::kWeightRows;
    // Where tiles are narrow a weight is read once and must not push activations out of L2; where they are wide other
    // blocks are about to read it.
    constexpr std::uint64_t kPolicy = Shape::kTokens < 128 ? ptx::kEvictFirst : ptx::kEvictNormal;
    if constexpr (Shape::kCluster == 1) {
      ptx::tma_load_3d(to, &weights, &m.full[slot], step * kStageDepth, row, item.expert, kPolicy);
    } else {
      // Each block fetches its share of the rows for both, so weights cross from L2 once a pair.
      const auto share = static_cast<std::int32_t>(ptx::cluster_rank()) * Shape::kBoxRows;
      ptx::tma_load_3d_multicast(to + share * kRowBytes, &weights, &m.full[slot], step * kStageDepth, row + share,
                                 item.expert, (1 << Shape::kCluster) - 1, kPolicy);
    }
  }
  __device__ void request_tokens(int slot, const GemmItem& item, int step) const {
    ptx::tma_load_2d(m.stages + slot * Shape::kStageBytes + Shape::kWeightBytes, &tokens, &m.full[slot],
                     step * kStageDepth, item.first_row, ptx::kEvictLast);
  }

  /// Tokens by pointer: all 128 threads copy, the first one also asks for the weights.
  __device__ void gather() const {
    ptx::wait_for_predecessor();
    ptx::launch_dependents();
    RingPosition<Shape::kStages> at;
    TokenGather<Shape::kTokens> rows;
    for_each_item<Shape>(work, [&](const GemmItem& item, int) {
      for (int step = 0; step < steps_of(work); ++step) {
        ptx::mbarrier_wait(&m.empty[at.slot], at.phase ^ 1);
        if (threadIdx.x == 0) request_weights(at.slot, item, step);
        if (step == 0) rows.locate(work, item);
        rows.copy(work, ptx::shared_address(m.stages + at.slot * Shape::kStageBytes + Shape::kWeightBytes),
                  step * kStageDepth);
        ptx::cp_async_arrive(&m.full[at.slot]);
        at.next();
      }
    });
  }

  /// Sorted tokens through the tensor map, by one thread. The tile map is older than the predecessor, so weights are
  /// requested before the predecessor has finished, as far as the ring goes.
  __device__ void fetch() const {
    RingPosition<Shape::kStages> at;
    bool waited = false;
    for_each_item<Shape>(work, [&](const GemmItem& item, int) {
      const int steps = steps_of(work);
      int ahead = 0;
      if (!waited) {
        ahead = min(Shape::kStages, steps);
        for (int step = 0; step < ahead; ++step) request_weights(step, item, step);
        ptx::wait_for_predecessor();
        ptx::launch_dependents();
        waited = true;
      }
      for (int step = 0; step < steps; ++step) {
        ptx::mbarrier_wait(&m.empty[at.slot], at.phase ^ 1);
        if (step >= ahead) request_weights(at.slot, item, step);
        request_tokens(at.slot, item, step);
        at.next();
      }
    });
    if (!waited) ptx::wait_for_predecessor();
  }
};

}  // namespace conclave::experts::cuda
