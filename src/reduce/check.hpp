// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the arguments of a reduction. Out: nothing, or an Error that names the argument.
#pragma once

#include <string_view>

#include "conclave/reduce.hpp"

namespace conclave::reduce {

/// f32, bf16 or f16, of rank `rank`, columns contiguous, memory unless it is empty.
void check_floats(std::string_view what, const ConstTensorView& view, int rank);

/// topk_ids and topk_weights [M, k] of one shape, rows of `rows_rank`, output [M, H] with the M of the ids.
void check_weighted(const ReduceInput& input, const TensorView& output, int rows_rank);

}  // namespace conclave::reduce
