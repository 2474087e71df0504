// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a problem. Out: can prepare and finalize run it, staying on one rank or exchanging tokens, or why not.
#pragma once

#include "conclave/config.hpp"
#include "conclave/support.hpp"

namespace conclave::dispatch {

/// On the CPU, activations unquantised in f32, bf16 or f16, no exchange between ranks. Tensor and expert parallel
/// splits without an exchange are fine: each rank computes its share of the output and the caller sums.
Support supports_local(const Problem& problem);
/// The same on a GPU.
Support supports_local_on_cuda(const Problem& problem);

/// The same for a part that exchanges tokens over the expert-parallel ranks by `all2all`: the problem must ask for it
/// by name. One rank is legal.
Support supports_exchange(const Problem& problem, All2All all2all);

}  // namespace conclave::dispatch
