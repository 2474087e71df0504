// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What a caller may have got wrong: checked before anything is written, each with the values in the message.
#pragma once

#include "conclave/config.hpp"
#include "conclave/flow.hpp"

namespace conclave {

/// [rows, cols] of `dtype` on the CPU with contiguous columns; null data only where there are no rows.
void check_matrix(const char* name, const ConstTensorView& view, std::int64_t rows, std::int64_t cols, DType dtype);

/// Ids i32 or i64 and weights f32, bf16 or f16, both [num_tokens, num_slots].
void check_routing(const Routing& routing, std::int64_t num_tokens, std::int64_t num_slots);

/// Checked mode: every id is -1 or in [0, num_experts). The message names token, slot, value and range.
void check_ids(const ConstTensorView& topk_ids, std::int64_t num_experts);

/// i32 [num_experts], values -1 or in [0, num_local_experts), no slot twice.
void check_expert_map(const ConstTensorView& map, std::int64_t num_experts, std::int64_t num_local_experts);

/// Output may be the input itself only where `in_place`; any other overlap is refused.
void check_aliasing(const ConstTensorView& input, const ConstTensorView& output, bool in_place);

/// Bytes from the first to the last element of a view, for overlap tests.
bool overlap(const ConstTensorView& a, const ConstTensorView& b) noexcept;

}  // namespace conclave
