// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a problem and the weights that a caller brings. Out: nothing, or an Error that names the tensor, what was
// expected and what was given. Every experts part calls it first in pack() and update().
#pragma once

#include <string>

#include "conclave/config.hpp"
#include "conclave/weights.hpp"

namespace conclave::experts {

/// Unquantised weights: w13 [E_local, 2I | I, H], w2 [E_local, H, I] in moe.weight_dtype; quantised ones and scales of
/// activations as quant/weights_check.hpp says; biases where the problem has them, f32, bf16 or f16. Expert and row
/// strides are free, columns are contiguous. E_local may be 0 (a rank without experts), at most the number of experts
/// with weights.
void check_weights(const Problem& problem, const ExpertWeights& weights);

/// Under tensor parallelism the partial outputs of all ranks are summed, so one rank alone adds the bias of the second
/// product: rank 0. (The bias of the first is cut along with the rows of w13 and belongs to every rank.)
inline bool adds_w2_bias(const Problem& problem) {
  return problem.moe.has_w2_bias && problem.parallel.tp_rank == 0;
}

/// Throws Error naming both layouts.
[[noreturn]] void fail_foreign_layout(const std::string& layout, const std::string& part);

/// `packed` as the class that part `name` packs into. Throws Error naming both layouts if another part packed it.
template <class Packed, class Base>
Packed& packed_as(Base& packed, const std::string& name) {
  auto* mine = packed.layout() == name ? dynamic_cast<Packed*>(&packed) : nullptr;
  if (mine == nullptr) fail_foreign_layout(packed.layout(), name);
  return *mine;
}

}  // namespace conclave::experts
