// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: what a part on the GPU is about to run on. Out: nothing, or an Error with the values in it, before any launch.
// The same for every part; a message is put together only where something is wrong.
#pragma once

#include <string>

#include "conclave/experts.hpp"

namespace conclave::experts::cuda {

/// Shapes, dtypes and devices of the input and of the output. Columns must be contiguous.
void check_input(const std::string& part, const Problem& problem, const ExpertsInput& input,
                 const ExpertsBuffers& buffers, Stream stream);

}  // namespace conclave::experts::cuda
