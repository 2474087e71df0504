// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The steps around the kernel (layer_steps.hpp, and the routing's form) on a GPU: work of the stream that neither
// allocates nor waits, but for the check of ids. steps.cu, or no_cuda.cpp in a build without CUDA.
#pragma once

#include <cstdint>

#include "conclave/flow.hpp"
#include "conclave/stream.hpp"
#include "kernel/layer_steps.hpp"

namespace conclave::on_cuda {

/// ids i32 or i64 and weights of any float type, any strides -> the same in the dtypes and strides of `to`. An id that
/// i32 cannot hold is no expert either way, and becomes -1.
void convert_routing(const Routing& from, const Routing& to, Stream stream);

void split_zero_experts(const Routing& routing, std::int64_t first_zero_id, const Routing& experts,
                        const TensorView& zero_weight, Stream stream);

/// ids := 0 and weights := 1, or, where weights hold x . gate, its sigmoid.
void finish_shared_routing(const Routing& routing, bool gated, Stream stream);

void epilogue(const EpilogueInput& input, const TensorView& output, Stream stream);

/// check_ids() of kernel_checks.hpp; `scratch` is i64 [1] on the device. Waits for the stream, so it cannot be recorded
/// in a graph.
void check_ids(const ConstTensorView& ids, std::int64_t num_experts, const TensorView& scratch, Stream stream);

}  // namespace conclave::on_cuda
