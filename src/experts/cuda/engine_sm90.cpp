// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The engine of Hopper: the product of grouped_gemm.hpp, whose operands the copy engine fetches by tensor maps.
#include <fmt/format.h>

#include "cuda/tensor_map.hpp"
#include "experts/cuda/engine.hpp"
#include "experts/cuda/grouped_gemm.hpp"

namespace conclave::experts::cuda {
namespace {

Support supports_sm90(const Problem& problem) {
  const int capability = problem.device.compute_capability;
  if (capability == 90) return Support::yes();
  return Support::no(
      fmt::format("compute capability {}.{}, it uses instructions of 9.0 alone", capability / 10, capability % 10));
}

void multiply_on_sm90(const GroupedProduct& p, GemmTile tile) {
  const GroupedGemm& work = p.work;
  const CUtensorMap weights = conclave::cuda::tensor_map_3d(p.weights, p.dtype, p.num_experts, work.weight_rows,
                                                            work.depth, work.depth, tile.box_rows());
  CUtensorMap tokens{};
  if (work.row_tokens == nullptr)
    tokens = conclave::cuda::tensor_map_2d(work.tokens, p.dtype, p.num_rows, work.depth, work.depth, tile.tokens);
  grouped_gemm(weights, tokens, work, tile, p.epilogue, p.dtype, p.num_multiprocessors, p.stream);
}

}  // namespace

constinit const GroupedEngine kEngineSm90{supports_sm90, choose, multiply_on_sm90, predict_seconds};

}  // namespace conclave::experts::cuda
