// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The tail and finish() on a GPU: work of the stream that neither allocates nor waits. tail.cu, or no_cuda.cpp in a
// build without CUDA. The arguments are checked, but for what only the GPU sees: a row of the permute map beyond the
// rows counts as none, and a static scale that is not a positive number makes every code NaN.
#pragma once

#include "conclave/tail.hpp"

namespace conclave::tail {

/// `rows`: f32 [M, H] for rows of the sum that shared memory does not hold.
void run_on_cuda(const TailConfig& config, const TailInput& input, const TailOutput& output, const TensorView& rows,
                 Stream stream);

void finish_on_cuda(const MoeOutput& moe, const TensorView& output, Stream stream);

}  // namespace conclave::tail
