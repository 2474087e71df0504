// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the batched format. Out: how many rows of each expert are valid, after checking that the shapes agree.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/error.hpp"
#include "base/local_experts.hpp"
#include "base/tensor_format.hpp"
#include "conclave/experts.hpp"

namespace conclave::experts {

/// Counts i32 [E_local], on the host. Throws Error if they are missing or the input is not shaped like `output`.
inline std::span<const std::int32_t> batched_counts(const ExpertsInput& input, const PackedWeights& weights,
                                                    const TensorView& output) {
  const ConstTensorView& x = input.hidden_states;
  require(x.size(0) == output.size(0) && x.size(1) == output.size(1),
          "hidden_states: given {}, expected [{}, {}, hidden_size] as the output", x, output.size(0), output.size(1));
  require(weights.num_local_experts() <= x.size(0), "hidden_states: given {}, expected room for {} local experts", x,
          weights.num_local_experts());
  require(input.expert_tokens.has_value(), "expert_tokens: missing, expected counts of {} local experts", x.size(0));
  const TensorView& counts = input.expert_tokens->counts;
  require(counts.dtype == DType::i32 && counts.rank == 1 && counts.size(0) == x.size(0) && counts.is_contiguous(),
          "expert_tokens: given {}, expected contiguous i32 [{}]", counts, x.size(0));
  return {counts.as<std::int32_t>(), static_cast<std::size_t>(counts.size(0))};
}

/// Rows of expert `e` to compute. A slot without weights has none: ids that land there mean nothing on this rank.
/// `max_rows` is the second extent of the buffers; a count beyond it would be a broken transport, not a reason to read
/// out of bounds.
inline std::int64_t valid_rows(std::span<const std::int32_t> counts, const PackedWeights& weights, std::int64_t e,
                               std::int64_t max_rows) {
  if (e >= weights.num_local_experts()) return 0;
  return std::clamp<std::int64_t>(counts[static_cast<std::size_t>(e)], 0, max_rows);
}

}  // namespace conclave::experts
