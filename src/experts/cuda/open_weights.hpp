// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The weights of an UnfinalizedMoeOutput: the router's, or ones where the input carries them already.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace conclave::experts::cuda {

/// to[i] := from[i], or 1 where `from` is null.
void open_weights(const float* from, float* to, std::int64_t count, cudaStream_t stream);

}  // namespace conclave::experts::cuda
