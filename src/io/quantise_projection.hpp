// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: one expert's projections as floats. Out: the tensors that a format stores for them.
#pragma once

#include "io/formats/weight_format.hpp"

namespace conclave {

/// One tensor for each projection and suffix. The projections lie above each other in `matrix` [count * rows, cols] and
/// share what one number scales a whole tensor with: readers that fuse gate and up have one place for it. f32 scales
/// are rounded to `scale_dtype` (f32 or bf16) before codes are chosen.
std::vector<std::vector<WrittenTensor>> quantise_projections(const WeightFormat& format, const ConstTensorView& matrix,
                                                             std::int64_t count, DType scale_dtype);

}  // namespace conclave
