// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The weights of a whole layer -> what one rank holds: some of the experts, or a slice of every expert's inner width.
#pragma once

#include <cstdint>
#include <vector>

#include "conclave/config.hpp"
#include "conclave/expert_map.hpp"
#include "conclave/tensor.hpp"
#include "conclave/weights.hpp"

namespace conclave {

/// Views into the given weights, but for `owned`, which must live as long. give_up is not set.
struct ShardedWeights {
  ExpertWeights experts;
  std::vector<Tensor> owned;  ///< Slices that no strides can describe (gate and up halves of w13), and expert_ids.
};

/// The range of [0, size) that `rank` of `num_ranks` holds: sizes differ by one at most, the first ones are larger.
struct ShardRange {
  std::int64_t begin = 0;
  std::int64_t length = 0;
};
ShardRange shard_range(std::int64_t size, std::int64_t num_ranks, std::int64_t rank);

/// The experts of parallel.ep_rank by parallel.placement, with their biases and scales; with enable_eplb those of its
/// slots in initial_placement().
/// Then the slice of parallel.tp_rank, `moe` being the config of the whole: rows of w13 and columns of w2, quantised or
/// not. Every rank keeps the bias of w2; the experts of the first rank add it.
/// Throws Error naming the tensor if the cut does not fall between two groups that share a scale.
ShardedWeights shard_weights(const MoeConfig& moe, const ExpertWeights& weights, const ParallelConfig& parallel);

/// The problem of one rank of `whole.parallel`, `whole.moe` and `whole.quant` being those of the whole layer: the
/// config of shard_config(), and the format that its weights have after the cut. Where a cut of any rank falls inside a
/// group that shares a scale, it is the key's variant with the largest smaller group that no cut divides, else none:
/// then the weights are decoded when they are cut, mxfp4 to bf16, which holds it, the others to f32. A note says
/// so.
Problem shard_problem(const Problem& whole);
/// The weights of that problem. As shard_weights() below, but no cut is refused.
ShardedWeights shard_weights(const Problem& whole, const ExpertWeights& weights);

/// The config of one rank: intermediate sizes cut by parallel.tp_size.
MoeConfig shard_config(const MoeConfig& moe, const ParallelConfig& parallel);

/// The map of parallel.ep_rank as a tensor i32 [num_weight_experts], which LayerWeights and kernels take.
Tensor expert_map_tensor(const MoeConfig& moe, const ParallelConfig& parallel);

}  // namespace conclave
