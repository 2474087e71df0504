// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Random weights for a shape that nobody has a checkpoint of: finite, of a trained model's magnitude, filled at memory
// speed, and given up page by page while they are packed.
#pragma once

#include "conclave/config.hpp"
#include "conclave/layer.hpp"

namespace conclave::cli {

/// f32, bf16 or f16: +- 2^e (1 + random mantissa), with e the exponent of `scale`. fp8_e4m3, i8 or u8: random bits,
/// none of them NaN. The same for every number of threads.
void fill_random(const TensorView& tensor, double scale, std::uint64_t seed, Executor& executor);

/// Bytes of random_weights().
std::int64_t random_weights_bytes(const Problem& problem);

/// Throws Error if the weights do not fit the memory that is left, with the number of experts that would.
void require_memory(const Problem& problem);

/// Every tensor that the problem asks for except the router's weight: a bench brings logits. With `give_up`, expert
/// matrices lose their pages as they are packed.
LayerWeights random_weights(const Problem& problem, bool give_up, Executor& executor);

/// The same for a GPU: one expert's tensors on the host stand for every expert, through views whose expert stride is 0.
/// Packing makes as many copies on the device; 22 GB of weights need neither host memory nor minutes.
LayerWeights repeated_weights(const Problem& problem, Executor& executor);

}  // namespace conclave::cli
