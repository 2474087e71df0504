// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the tensors of all experts. Out: one expert's w13 or w2 as matrices whose views have the canonical shapes. w13 is
// two of them, gate and up, where each has a tensor-wide scale of its own.
#pragma once

#include <array>
#include <span>

#include "quant/format.hpp"

namespace conclave::quant {

/// w13 or w2 of all experts, as in ExpertWeights.
struct ExpertTensors {
  ConstTensorView elements;
  std::optional<ConstTensorView> scale, global_scale, zero_point;
};
ExpertTensors w13_tensors(const ExpertWeights& weights);
ExpertTensors w2_tensors(const ExpertWeights& weights);

/// Row r of the matrix is row first_row + r * row_step of the expert's.
struct ExpertMatrix {
  ConstQuantMatrix matrix;
  std::int64_t first_row = 0, row_step = 1;
};

struct ExpertMatrices {
  std::array<ExpertMatrix, 2> parts;
  std::size_t count = 1;
  auto begin() const noexcept { return parts.begin(); }
  auto end() const noexcept { return parts.begin() + static_cast<std::ptrdiff_t>(count); }
};

/// True if the tensor-wide scales among these are two for each expert.
bool has_split_scales(const Format& format, const ExpertTensors& tensors) noexcept;

/// Rows of the gate (part 0) or of up (part 1) among the 2I rows of w13.
struct RowSlice {
  std::int64_t first, step;
};
RowSlice gate_or_up_rows(W13Layout layout, int part, std::int64_t intermediate_size) noexcept;

/// The tensors were checked (check_quantised_weights).
ExpertMatrices w13_matrices(const MoeConfig& moe, QuantKey key, const ExpertWeights& weights, std::int64_t expert);
ExpertMatrices w2_matrices(const MoeConfig& moe, QuantKey key, const ExpertWeights& weights, std::int64_t expert);

}  // namespace conclave::quant
