// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// GEMM2, up to 64 tokens a tile, on the tensor cores of Ampere, in f16.
#include "experts/cuda/mma_gemm.cuh"

namespace conclave::experts::cuda {

bool mma_linear_narrow_f16(const GroupedProduct& product, GemmTile tile) {
  return start_mma_narrow<Epilogue::linear, __half>(product, tile);
}

}  // namespace conclave::experts::cuda
