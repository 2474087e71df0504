// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Element types of files and of kernels: f64, f32, bf16 and f16 into each other (round to nearest even), integers
// into the i32 that ids have.
#pragma once

#include <cstdint>

#include "conclave/stream.hpp"
#include "conclave/tensor.hpp"

namespace conclave::cli {

/// f64, f32, bf16 or f16.
bool is_convertible(DType dtype) noexcept;
bool is_integer(DType dtype) noexcept;

/// A contiguous copy of `view` in `to` (f32, bf16 or f16). Rows may be strided, columns not. Throws Error naming
/// `what`.
Tensor convert(const ConstTensorView& view, DType to, const char* what, Executor& executor);

/// A contiguous i32 copy of an integer tensor; values that do not fit become the nearest one, which is no legal id.
Tensor convert_ids(const ConstTensorView& view, const char* what);

}  // namespace conclave::cli
