// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a MoeOutput. Out: some columns of one token's routed * s + shared, in f32.
#include "tail/open_sum.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "cpu/float_convert.hpp"

namespace conclave::tail {
namespace {

void load_columns(const ConstTensorView& matrix, std::int64_t row, std::int64_t h, std::int64_t n, float* to) {
  const auto* bytes = matrix.as<std::byte>() + bytes_of(matrix.dtype, row * matrix.stride(0) + h);
  cpu::load_f32(bytes, matrix.dtype, n, to);
}

/// The row of (token, pick), or -1.
std::int64_t permuted_row(const UnfinalizedMoeOutput& open, std::int64_t token, std::int64_t pick) {
  const ConstTensorView& map = open.expanded_idx_to_permuted_idx;
  const std::int64_t row = map.as<std::int32_t>()[token * map.stride(0) + pick * map.stride(1)];
  if (row < -1 || row >= open.gemm2_permuted.size(0)) [[unlikely]]
    fail(ErrorKind::invalid_argument, "permute map: given row {} for token {}, pick {}, expected -1 or below {}", row,
         token, pick, open.gemm2_permuted.size(0));
  return row;
}

void sum_picks(const UnfinalizedMoeOutput& open, std::int64_t token, std::int64_t h, std::int64_t n, float* sum) {
  const ConstTensorView& weights = open.expert_weights;
  float row[kChunk];
  std::fill_n(sum, n, 0.0F);
  for (std::int64_t pick = 0; pick < weights.size(1); ++pick) {
    const std::int64_t at = permuted_row(open, token, pick);
    const float weight =
        cpu::load_element(weights.data, weights.dtype, token * weights.stride(0) + pick * weights.stride(1));
    if (at < 0 || weight == 0.0F) continue;
    load_columns(open.gemm2_permuted, at, h, n, row);
    for (std::int64_t i = 0; i < n; ++i) sum[i] += weight * row[i];
  }
}

}  // namespace

void open_sum(const MoeOutput& moe, std::int64_t token, std::int64_t h, std::int64_t n, float* sum) {
  if (moe.unfinalized)
    sum_picks(*moe.unfinalized, token, h, n, sum);
  else
    load_columns(*moe.routed, token, h, n, sum);
  const auto scale = static_cast<float>(moe.routed_scaling_factor);
  if (scale != 1.0F)
    for (std::int64_t i = 0; i < n; ++i) sum[i] *= scale;
  if (!moe.shared_output) return;
  float shared[kChunk];
  load_columns(*moe.shared_output, token, h, n, shared);
  for (std::int64_t i = 0; i < n; ++i) sum[i] += shared[i];
}

std::int64_t picks_of(const MoeOutput& moe) noexcept {
  const std::int64_t routed = moe.unfinalized ? moe.unfinalized->expert_weights.size(1) : 1;
  return std::max<std::int64_t>(1, routed + (moe.shared_output ? 1 : 0));
}

}  // namespace conclave::tail
