// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a quantisation key and the shape of a matrix. Out: random codes that are numbers, and the constant scales with
// which they are as large as a trained model's weights. Quantising random floats instead would take minutes.
#pragma once

#include <optional>

#include "conclave/quantise.hpp"
#include "conclave/stream.hpp"

namespace conclave::cli {

struct RandomCodes {
  Tensor elements, scale;
  std::optional<Tensor> global_scale, zero_point;
};

/// [experts, rows, cols] of values of the order of 1 / sqrt(cols).
RandomCodes random_codes(QuantKey key, std::int64_t experts, std::int64_t rows, std::int64_t cols, std::uint64_t seed,
                         Executor& executor);

}  // namespace conclave::cli
