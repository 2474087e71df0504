// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a problem. Out: yes, or why no part of the CUDA back end can run it. What every part on the GPU asks first.
#pragma once

#include "conclave/config.hpp"
#include "conclave/support.hpp"

namespace conclave::experts::cuda {

/// A CUDA device, unquantised weights and activations, any activation and shape.
Support supports_unquantized_on_cuda(const Problem& problem);

}  // namespace conclave::experts::cuda
