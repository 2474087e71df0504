// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: what a producer or a caller gave. Out: an Error that names the first tensor in the way, before anything is
// written.
#pragma once

#include "conclave/tail.hpp"

namespace conclave::tail {

/// f32, bf16 or f16 [rows, cols] with contiguous columns; null data only where it is empty.
void check_floats(const char* what, const ConstTensorView& view, std::int64_t rows, std::int64_t cols);

/// Tokens of an output that is exactly one of routed and unfinalized, all tensors `hidden_size` wide.
std::int64_t check_open(const MoeOutput& moe, std::int64_t hidden_size);

/// Everything that run_tail() gets, for the M of `input.moe`.
void check_tail(const TailConfig& config, const TailInput& input, const TailOutput& output, std::int64_t num_tokens);

/// Memory of the stream's device, unless it is empty.
void check_place(const char* what, const ConstTensorView& view, Stream stream);
/// The same for every tensor.
void check_places(const MoeOutput& moe, Stream stream);
void check_places(const TailInput& input, const TailOutput& output, Stream stream);

/// "", or why the tail cannot quantise to `quant`.
Support supports_tail_quant(QuantKey quant);

}  // namespace conclave::tail
