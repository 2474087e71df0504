// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a problem. Out: can prepare and finalize that stay on one rank run it, or why not.
#pragma once

#include "conclave/config.hpp"
#include "conclave/support.hpp"

namespace conclave::dispatch {

/// On the CPU, activations unquantised in f32, bf16 or f16, no exchange between ranks. Tensor and expert parallel
/// splits without an exchange are fine: each rank computes its share of the output and the caller sums.
Support supports_local(const Problem& problem);

}  // namespace conclave::dispatch
