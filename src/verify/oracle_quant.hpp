// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The number formats once more, in f64 and from their definitions: codes as a list of values, rounding as a search for
// the nearest. Shares no code with the library's codecs.
#pragma once

#include <vector>

#include "conclave/config.hpp"
#include "conclave/weights.hpp"

namespace conclave::verify_detail {

/// Row-major values of w13 (or w2) of one expert. Scales have rank 3, [E_local, row groups, column groups], or
/// [E_local, 2, 1] where gate and up have one each.
std::vector<double> oracle_dequantise(const MoeConfig& moe, QuantKey key, const ExpertWeights& weights,
                                      std::int64_t expert, bool is_w13);

/// One row of activations through its codes. `given` is the scale of the tensor, where the key has one.
void oracle_requantise(QuantKey key, std::vector<double>& row, double given);

/// One scale for all rows of a batch, and its value for rows whose largest magnitude is `amax`.
bool oracle_spans_the_batch(QuantKey key) noexcept;
double oracle_batch_scale(QuantKey key, double amax) noexcept;

}  // namespace conclave::verify_detail
