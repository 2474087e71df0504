// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// GEMM2, rows sorted, 128 tokens a tile as the 64-row operand, in f16.
#include "experts/cuda/gemm_kinds.hpp"
#include "experts/cuda/grouped_gemm_sm90.cuh"

namespace conclave::experts::cuda {

bool gemm_linear_token_rows_f16(const CUtensorMap& weights, const CUtensorMap& tokens, const GroupedGemm& work,
                                GemmTile tile, int max_blocks, cudaStream_t stream) {
  return start_token_rows<Epilogue::linear, false, __half>(weights, tokens, work, tile, max_blocks, stream);
}

}  // namespace conclave::experts::cuda
