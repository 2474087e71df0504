// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Items -> stages in shared memory: tokens through the list of rows and weights, both by cp.async, 16 bytes a thread.
#pragma once

#include "cuda/ptx/cp_async.cuh"
#include "experts/cuda/mma_shape.cuh"

namespace conclave::experts::cuda {

template <class Shape>
class MmaLoad {
 public:
  __device__ MmaLoad(const GroupedGemm& work, const void* weights, const GemmItem& item)
      : depth_(work.depth),
        weight_rows_(work.weight_rows - item.weight_tile * Shape::kWeightRows - row_),
        tokens_(static_cast<const char*>(work.tokens)) {
#pragma unroll
    for (int p = 0; p < kTokenPasses; ++p) {
      const int row = row_ + p * kRowsPerPass;
      from_[p] = kNone;
      if (row >= item.rows) continue;
      const std::int32_t sorted = item.first_row + row;
      const std::int64_t token = work.row_tokens == nullptr ? sorted : work.row_tokens[sorted];
      from_[p] = static_cast<std::uint32_t>(token * work.token_stride / 8);
    }
    const std::int64_t first =
        static_cast<std::int64_t>(item.expert) * work.weight_rows + item.weight_tile * Shape::kWeightRows + row_;
    weights_ = static_cast<const char*>(weights) + 2 * first * depth_;
  }

  /// Columns of stage `step`. Rows that are not there are not copied: what they hold ends in sums that nobody writes.
  /// Beyond K zeros are needed, not just anything: the other operand is zero there, but 0 * NaN is not.
  __device__ void copy(std::uint32_t stage, int step) const {
    const std::int32_t column = step * kMmaDepth + 8 * unit_;
    const std::uint32_t bytes = column < depth_ ? 16 : 0;
    const std::int64_t offset = bytes == 0 ? 0 : 2 * static_cast<std::int64_t>(column);
    const std::uint32_t to = stage + static_cast<std::uint32_t>(swizzled<kMmaUnits>(row_, unit_));
#pragma unroll
    for (int p = 0; p < kTokenPasses; ++p)
      if (from_[p] != kNone)
        ptx::cp_async_16(to + p * kPassBytes, tokens_ + offset + 16 * static_cast<std::uint64_t>(from_[p]), bytes);
#pragma unroll
    for (int p = 0; p < kWeightPasses; ++p)
      if (p * kRowsPerPass < weight_rows_)
        ptx::cp_async_16(to + Shape::kTokenBytes + p * kPassBytes,
                         weights_ + offset + 2 * static_cast<std::int64_t>(p * kRowsPerPass) * depth_, bytes);
  }

 private:
  /// Multiples of 8, so that one swizzle holds for every pass.
  static constexpr int kRowsPerPass = kMmaThreads / kMmaUnits;
  static constexpr std::uint32_t kPassBytes = kRowsPerPass * kMmaUnits * 16;
  static constexpr int kTokenPasses = Shape::kTokens / kRowsPerPass;
  static constexpr int kWeightPasses = Shape::kWeightRows / kRowsPerPass;
  static_assert(kRowsPerPass % 8 == 0 && Shape::kTokens % kRowsPerPass == 0 && Shape::kWeightRows % kRowsPerPass == 0);

  static constexpr std::uint32_t kNone = ~0U;

  int row_ = static_cast<int>(threadIdx.x) / kMmaUnits;
  int unit_ = static_cast<int>(threadIdx.x) % kMmaUnits;
  std::int32_t depth_;
  std::int32_t weight_rows_;  ///< From this thread's first row on.
  /// Where rows begin, from tokens_ on and in 16 bytes, so that 64 GiB fit into a register. kNone: no row to copy.
  std::uint32_t from_[kTokenPasses];
  const char* tokens_;
  const char* weights_;
};

}  // namespace conclave::experts::cuda
