// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What the epilogues of the grouped product apply to sums in registers.
#pragma once

#include "experts/cuda/grouped_product.hpp"

namespace conclave::experts::cuda {

/// g' sigmoid(alpha g') (clamp(u) + beta), g' = min(g, limit): the three most common activations, with the fast
/// exponential and division of the hardware (2 ulp each, far below the rounding that follows). Comparisons are written
/// so that NaN stays NaN.
__device__ inline float swiglu(const ActivationFn& fn, float gate, float up) {
  gate = gate > fn.limit ? fn.limit : gate;
  up = up > fn.limit ? fn.limit : up < -fn.limit ? -fn.limit : up;
  return __fdividef(gate, 1.0F + __expf(-fn.alpha * gate)) * (up + fn.beta);
}

template <Epilogue kEpilogue>
__device__ inline float gated(const ActivationFn& fn, float gate, float up) {
  if constexpr (kEpilogue == Epilogue::swiglu)
    return swiglu(fn, gate, up);
  else
    return activate(fn, gate, up);
}
template <Epilogue kEpilogue>
__device__ inline float plain(const ActivationFn& fn, float x) {
  if constexpr (kEpilogue == Epilogue::plain)
    return activate(fn, x);
  else
    return x;
}

}  // namespace conclave::experts::cuda
