// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: ids and weights [M, k]. Out: rows by expert.
#include "experts/cpu/assignment.hpp"

#include <algorithm>

namespace conclave::experts::grouped {

Assignment Assignment::take(Arena& arena, std::int64_t num_pairs, std::int64_t num_experts) {
  Assignment a;
  a.pairs = arena.take(DType::i32, {num_pairs}).as<std::int32_t>();
  a.present = arena.take(DType::u8, {num_pairs}).as<std::uint8_t>();
  a.weights = arena.take(DType::f32, {num_pairs}).as<float>();
  a.experts = reinterpret_cast<ExpertRows*>(arena.take(DType::i64, {num_experts, 3}).as<std::int64_t>());
  a.active = arena.take(DType::i32, {num_experts}).as<std::int32_t>();
  a.units = arena.take(DType::i64, {num_experts + 1}).as<std::int64_t>();
  return a;
}

void Assignment::fill(const SlotLookup& slot_of, const ConstTensorView& topk_weights, bool weight_applied,
                      std::int64_t num_local_experts, std::int64_t quantum) {
  const auto* given = topk_weights.as<float>();
  const std::int64_t top_k = slot_of.top_k();
  std::fill_n(experts, num_local_experts, ExpertRows{});

  for (std::int64_t token = 0, pair = 0; token < slot_of.num_tokens(); ++token)
    for (std::int64_t pick = 0; pick < top_k; ++pick, ++pair) {
      const float weight =
          weight_applied ? 1.0f : given[token * topk_weights.stride(0) + pick * topk_weights.stride(1)];
      const std::int64_t slot = weight == 0.0f ? -1 : slot_of(token, pick);
      weights[pair] = weight;
      present[pair] = slot >= 0 ? 1 : 0;
      if (slot >= 0) ++experts[slot].rows;
    }

  num_active = num_rows = max_rows = 0;
  for (std::int64_t e = 0, base = 0; e < num_local_experts; ++e) {
    ExpertRows& expert = experts[e];
    expert.first = num_rows;
    expert.base = base;
    num_rows += expert.rows;
    base += (expert.rows + quantum - 1) / quantum * quantum;
    max_rows = std::max(max_rows, expert.rows);
    if (expert.rows > 0) active[num_active++] = static_cast<std::int32_t>(e);
  }

  // The second pass counts each expert's rows up from zero again, so that no cursor array is needed.
  for (std::int64_t a = 0; a < num_active; ++a) experts[active[a]].rows = 0;
  for (std::int64_t token = 0, pair = 0; token < slot_of.num_tokens(); ++token)
    for (std::int64_t pick = 0; pick < top_k; ++pick, ++pair) {
      if (present[pair] == 0) continue;
      ExpertRows& expert = experts[slot_of(token, pick)];
      pairs[expert.first + expert.rows++] = static_cast<std::int32_t>(pair);
    }

  // Big experts first: what is left when the threads run out of work is then small.
  std::sort(active, active + num_active, [&](std::int32_t a, std::int32_t b) {
    return experts[a].rows != experts[b].rows ? experts[a].rows > experts[b].rows : a < b;
  });
}

std::int64_t Assignment::owner_of(std::int64_t unit) const {
  return std::upper_bound(units, units + num_active + 1, unit) - units - 1;
}

}  // namespace conclave::experts::grouped
