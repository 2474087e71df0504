// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: sizes of a problem and a token count. Out: tiles of the grouped products of mma_gemm.hpp. Pure, as choose.hpp.
#pragma once

#include "experts/cuda/choose.hpp"

namespace conclave::experts::cuda {

GemmChoice choose_mma(const GemmProblem& problem, std::int64_t num_tokens);

}  // namespace conclave::experts::cuda
