// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A status of the CUDA runtime -> nothing, or an Error that names the call and what the runtime says.
#pragma once

#include <cuda_runtime_api.h>

namespace conclave::cuda {

/// Throws Error(unsupported) where there is no usable GPU or driver, Error(out_of_memory) where memory ran out, and
/// Error(invalid_argument) otherwise.
void check(cudaError_t status, const char* call);

}  // namespace conclave::cuda
