// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: ids and weights [M, k]. Out: which rows each local expert computes. A counting sort, so that an expert's rows are
// in token order whatever the number of threads; the calling thread does it alone, at a few nanoseconds for each pair.
#pragma once

#include <cstdint>
#include <optional>

#include "base/slot_lookup.hpp"
#include "conclave/tensor.hpp"
#include "conclave/workspace.hpp"

namespace conclave::experts::grouped {

struct ExpertRows {
  std::int64_t rows = 0;   ///< Pairs that chose this expert.
  std::int64_t first = 0;  ///< Index of the first of them in pairs.
  std::int64_t base = 0;   ///< Row of the first in the packed inputs, where every expert's rows are padded.
};

/// Memory for `num_pairs` = M * k pairs and up to `num_experts` local experts. A pair is token * k + pick.
struct Assignment {
  std::int32_t* pairs;    ///< By expert, then by token.
  std::uint8_t* present;  ///< [num_pairs]: 0 where the slot is empty, remote or has weight zero.
  float* weights;         ///< [num_pairs]
  ExpertRows* experts;    ///< [num_experts]
  std::int32_t* active;   ///< Experts that have rows, the most rows first, ties to the lower index.
  std::int64_t* units;    ///< [num_experts + 1]: work units of the active experts, summed up; for the phases.
  std::int64_t num_active = 0;
  std::int64_t num_rows = 0;
  std::int64_t max_rows = 0;

  static Assignment take(Arena& arena, std::int64_t num_pairs, std::int64_t num_experts);

  /// Fills everything but units. `weight_applied`: every weight counts as 1. Rows are padded to `quantum`.
  void fill(const SlotLookup& slot_of, const ConstTensorView& topk_weights, bool weight_applied,
            std::int64_t num_local_experts, std::int64_t quantum);

  /// units[a + 1] - units[a] = count(active expert a); returns the sum.
  template <class Count>
  std::int64_t count_units(Count&& count) {
    units[0] = 0;
    for (std::int64_t a = 0; a < num_active; ++a) units[a + 1] = units[a] + count(experts[active[a]]);
    return units[num_active];
  }

  /// The index in `active` whose units include `unit`.
  std::int64_t owner_of(std::int64_t unit) const;
};

}  // namespace conclave::experts::grouped
