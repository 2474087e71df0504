// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What a caller may have got wrong: checked before anything is written, each with the values in the message.
#pragma once

#include "conclave/config.hpp"
#include "conclave/flow.hpp"
#include "conclave/stream.hpp"

namespace conclave {

/// A stream of the planned device, with an executor on the CPU.
void check_stream(const Stream& stream, Device planned);

/// [rows, cols] of `dtype` on `device` with contiguous columns; null data only where there are no rows.
void check_matrix(const char* name, const ConstTensorView& view, std::int64_t rows, std::int64_t cols, DType dtype,
                  Device device = {});

/// Ids i32 or i64 and weights f32, bf16 or f16, both [num_tokens, num_slots].
void check_routing(const Routing& routing, std::int64_t num_tokens, std::int64_t num_slots, Device device = {});

/// Checked mode: every id is -1 or in [0, num_experts). The message names token, slot, value and range. Ids on the
/// host.
void check_ids(const ConstTensorView& topk_ids, std::int64_t num_experts);

/// i32 [num_experts], values -1 or in [0, num_local_experts), no slot twice. Values on a GPU are not looked at: who put
/// the map there has checked it, and kernels treat a slot out of range as none.
void check_expert_map(const ConstTensorView& map, std::int64_t num_experts, std::int64_t num_local_experts);

/// Output may be the input itself only where `in_place`; any other overlap is refused.
void check_aliasing(const ConstTensorView& input, const ConstTensorView& output, bool in_place);

/// Bytes from the first to the last element of a view, for overlap tests.
bool overlap(const ConstTensorView& a, const ConstTensorView& b) noexcept;

}  // namespace conclave
