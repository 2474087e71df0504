// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The device half of check_ids().
#pragma once

#include "conclave/stream.hpp"

namespace conclave::on_cuda {

/// scratch i64 [1] := index (row * slots + slot) of the first id outside -1 or [0, num_experts), or a number beyond
/// all.
void find_bad_id(const ConstTensorView& ids, std::int64_t num_experts, const TensorView& scratch, Stream stream);

}  // namespace conclave::on_cuda
