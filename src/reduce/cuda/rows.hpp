// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The kinds of reduction on a GPU. rows.cu, or no_cuda.cpp in a build without CUDA.
#pragma once

#include "base/slot_table.hpp"
#include "conclave/reduce.hpp"

namespace conclave::reduce {

/// to [M, H] := from [M, H], rounded if the dtypes differ. Work of the stream.
void copy_rows_on_cuda(const ConstTensorView& from, const TensorView& to, Stream stream);

/// WeightAndReduceKind::contiguous: rows [M, k, H] -> output [M, H]. The arguments are checked.
void sum_rows_on_cuda(const ReduceInput& input, const SlotTable& slot_of, const TensorView& output, Stream stream);

/// WeightAndReduceKind::naive_batched: rows [E_local, T, H] -> output [M, H]. The arguments are checked, but for a row
/// beyond T, which only the GPU sees: it is skipped.
void sum_batched_rows_on_cuda(const ReduceInput& input, const SlotTable& slot_of, const TensorView& output,
                              Stream stream);

}  // namespace conclave::reduce
