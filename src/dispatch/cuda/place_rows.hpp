// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: topk_ids on a GPU. Out, without a word to the host: the batched format, in which expert e has the tokens that
// picked it, each once, in token order.
#pragma once

#include <cuda_runtime_api.h>

#include "base/slot_table.hpp"
#include "conclave/flow.hpp"

namespace conclave::dispatch {

/// counts [E_local] := rows of each expert; row_tokens [E_local, T] := their tokens, as far as the count goes.
void place_rows(const SlotTable& slot_of, const TensorView& counts, const TensorView& row_tokens, cudaStream_t stream);

/// to [E_local, T, H] := the rows of those tokens, times the router weight of their one pick where it goes on the
/// input. Rows behind the counts are not written.
void copy_placed_rows(const ConstTensorView& from, const TensorView& counts, const TensorView& row_tokens,
                      const ConstTensorView* weights, const TensorView& to, cudaStream_t stream);

}  // namespace conclave::dispatch
