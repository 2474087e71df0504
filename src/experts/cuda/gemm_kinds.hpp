// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The compiled kinds of grouped_gemm.hpp, a file each so that they compile side by side: what GEMM1 applies to its
// sums, how tokens come, how wide tiles are, which dtype.
#pragma once

#include "experts/cuda/grouped_gemm.hpp"

namespace conclave::experts::cuda {

/// False: not one of the compiled tiles.
using GemmKind = bool(const CUtensorMap& weights, const CUtensorMap& tokens, const GroupedGemm& work, GemmTile tile,
                      int max_blocks, cudaStream_t stream);
GemmKind gemm_swiglu_narrow_bf16, gemm_swiglu_narrow_f16;
GemmKind gemm_swiglu_wide_bf16, gemm_swiglu_wide_f16;
GemmKind gemm_linear_narrow_bf16, gemm_linear_narrow_f16;
GemmKind gemm_linear_wide_bf16, gemm_linear_wide_f16;
GemmKind gemm_sorted_wide_bf16, gemm_sorted_wide_f16;
GemmKind gemm_swiglu_token_rows_bf16, gemm_swiglu_token_rows_f16;
GemmKind gemm_linear_token_rows_bf16, gemm_linear_token_rows_f16;
GemmKind gemm_gated_narrow_bf16, gemm_gated_narrow_f16;
GemmKind gemm_plain_narrow_bf16, gemm_plain_narrow_f16;

}  // namespace conclave::experts::cuda
