// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: what a part on the GPU is about to run on. Out: nothing, or an Error with the values in it, before any launch.
// The same for every part; a message is put together only where something is wrong.
#pragma once

#include <string>

#include "conclave/experts.hpp"

namespace conclave::experts::cuda {

/// Shapes, dtypes and devices of the input, standard format. Columns must be contiguous.
void check_input(const std::string& part, const Problem& problem, const ExpertsInput& input, Stream stream);
/// The same, and that the output is [M, H] in the layer's dtype.
void check_input(const std::string& part, const Problem& problem, const ExpertsInput& input,
                 const ExpertsBuffers& buffers, Stream stream);

/// The batched format: rows [E_local, T, H] whose experts lie densely behind each other, i32 counts [E_local], room for
/// the experts of `weights`.
void check_batched_input(const std::string& part, const Problem& problem, const ExpertsInput& input,
                         const PackedWeights& weights, Stream stream);

}  // namespace conclave::experts::cuda
