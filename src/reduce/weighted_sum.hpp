// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One output row, or a range of its columns: sum over picks of weight * row, in the order of k, in f32, rounded once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "conclave/reduce.hpp"
#include "cpu/float_convert.hpp"

namespace conclave::reduce {

/// The weight of (token, pick) as the sum uses it.
inline float weight_of(const ReduceInput& input, std::int64_t token, std::int64_t pick) {
  if (input.weight_already_applied) return 1.0f;
  const ConstTensorView& w = input.topk_weights;
  return cpu::load_element(w.data, w.dtype, token * w.stride(0) + pick * w.stride(1));
}

/// Below this many products a parallel region costs more than the sum.
inline constexpr std::int64_t kProductsWorthThreads = 16384;

/// Columns kept in the first-level cache together with one chunk of a row.
inline constexpr std::int64_t kChunk = 512;

/// Writes columns [begin, end) of output row `token`. `row_offset(pick)`: offset in elements of that pick's row within
/// input.rows, or -1 where there is none.
template <class RowOffset>
void weighted_sum(const ReduceInput& input, const TensorView& output, std::int64_t token, std::int64_t begin,
                  std::int64_t end, RowOffset&& row_offset) {
  const TensorView out = output.at(token);
  float sum[kChunk];
  float row[kChunk];
  for (std::int64_t h = begin; h < end; h += kChunk) {
    const std::int64_t n = std::min(kChunk, end - h);
    std::fill_n(sum, n, 0.0f);
    for (std::int64_t pick = 0; pick < input.topk_ids.size(1); ++pick) {
      const float weight = weight_of(input, token, pick);
      const std::int64_t offset = row_offset(pick);
      if (offset < 0 || weight == 0.0f) continue;
      const auto* bytes = input.rows.as<std::byte>() + bytes_of(input.rows.dtype, offset + h);
      cpu::load_f32(bytes, input.rows.dtype, n, row);
      for (std::int64_t i = 0; i < n; ++i) sum[i] += weight * row[i];
    }
    cpu::store_f32(sum, output.dtype, n, out.narrow(0, h, n).data);
  }
}

}  // namespace conclave::reduce
