// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The grouped product of grouped_product.hpp on Hopper, with the weights as the 64-row operand of wgmma and the tokens
// as its columns, whatever their number: eight tokens cost what one costs, so decoding and prefill are the same kernel
// at different widths.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "conclave/dtype.hpp"
#include "experts/cuda/gemm_tile.hpp"
#include "experts/cuda/grouped_product.hpp"

namespace conclave::experts::cuda {

/// `weights`: 3-D map [expert, row, K] with boxes of {1, tile.box_rows(), 64}; `tokens`: 2-D map [row, K] with
/// boxes of {tile.tokens, 64}, ignored where the work gathers. `max_blocks`: the multiprocessors to use.
void grouped_gemm(const CUtensorMap& weights, const CUtensorMap& tokens, const GroupedGemm& work, GemmTile tile,
                  Epilogue epilogue, DType dtype, int max_blocks, cudaStream_t stream);

/// Elements of K in one stage: 128 bytes, the width of the swizzle.
inline constexpr int kStageDepth = 64;

}  // namespace conclave::experts::cuda
