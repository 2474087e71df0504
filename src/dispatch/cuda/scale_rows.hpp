// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// x := x * w on a GPU, where the router weight goes on the input.
#pragma once

#include <cuda_runtime_api.h>

#include "conclave/tensor.hpp"

namespace conclave::dispatch {

/// to [M, H] := from [M, H] * weights [M, 1], rounded to their dtype. weights f32, bf16 or f16. Work of the stream.
void scale_rows(const ConstTensorView& from, const ConstTensorView& weights, const TensorView& to, cudaStream_t stream);

}  // namespace conclave::dispatch
