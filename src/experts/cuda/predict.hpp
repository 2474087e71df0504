// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: sizes of a problem, a token count, the ceilings of a device. Out: how long a layer will take on it, from router
// logits to the reduced output. A pure function of numbers, tested against measurements without a GPU.
#pragma once

#include <cstdint>

#include "experts/cuda/choose.hpp"

namespace conclave::experts::cuda {

struct GemmCeilings {
  double bytes_per_second = 0;
  double flops = 0;  ///< Of a large dense product of the dtype.
};

/// Seconds for uniform routing; 0 where a ceiling is not known. Within 15 % of an H200 from 64 tokens up (the largest
/// error over four models is 8 %); below, launches and the first loads count for more than it says, up to a quarter.
double predict_seconds(const GemmProblem& problem, const GemmCeilings& ceilings, std::int64_t num_tokens);

}  // namespace conclave::experts::cuda
