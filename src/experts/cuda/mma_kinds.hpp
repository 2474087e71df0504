// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The compiled kinds of mma_gemm.hpp, a file each so that they compile side by side: what is applied to the sums, how
// wide tiles are, which dtype.
#pragma once

#include "experts/cuda/mma_gemm.hpp"

namespace conclave::experts::cuda {

/// False: not one of the compiled tiles.
using MmaKind = bool(const GroupedProduct& product, GemmTile tile);
MmaKind mma_linear_narrow_bf16, mma_linear_narrow_f16;
MmaKind mma_linear_wide_bf16, mma_linear_wide_f16;
MmaKind mma_swiglu_narrow_bf16, mma_swiglu_narrow_f16;
MmaKind mma_swiglu_wide_bf16, mma_swiglu_wide_f16;
MmaKind mma_gated_narrow_bf16, mma_gated_narrow_f16;
MmaKind mma_plain_narrow_bf16, mma_plain_narrow_f16;

}  // namespace conclave::experts::cuda
