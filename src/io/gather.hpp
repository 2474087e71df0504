// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: matrices as a file holds them. Out: the same numbers in one buffer, in the order that kernels take.
#pragma once

#include <cstdint>

#include "conclave/tensor.hpp"

namespace conclave {

/// to[r, c] = from[c, r]. Both contiguous, of one dtype of 1, 2, 4 or 8 bytes; `from` has `rows` x `cols`.
void transpose(const ConstTensorView& from, const TensorView& to);

/// Copies all elements of `from` into `to`; both contiguous, same dtype and count.
void copy(const ConstTensorView& from, const TensorView& to);

/// Element `index` in the order of memory; f32, bf16 or f16.
float widened_element(const ConstTensorView& from, std::int64_t index);

/// A small f32 tensor with the values of `from`, which is f32, bf16 or f16 and contiguous.
Tensor widened(const ConstTensorView& from);

}  // namespace conclave
