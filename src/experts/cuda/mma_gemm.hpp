// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The grouped product of grouped_product.hpp on any GPU with the tensor cores of Ampere: cp.async, ldmatrix, mma.sync.
#pragma once

#include "experts/cuda/gemm_tile.hpp"
#include "experts/cuda/grouped_product.hpp"

namespace conclave::experts::cuda {

void mma_gemm(const GroupedProduct& product, GemmTile tile);

}  // namespace conclave::experts::cuda
