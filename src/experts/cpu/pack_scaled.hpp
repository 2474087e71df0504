// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: one expert's matrix in codes with its scales. Out: panels of codes (ScaledFormat).
#pragma once

#include <vector>

#include "conclave/stream.hpp"
#include "experts/cpu/engine.hpp"
#include "experts/cpu/source_matrix.hpp"
#include "quant/expert_matrices.hpp"

namespace conclave::experts::grouped {

/// Codes and scales by row of the expert's matrix, whether its tensor-wide scales are one or two.
class ScaledSource {
 public:
  ScaledSource(const ScaledFormat& format, const quant::ExpertMatrices& matrices);

  const ScaledFormat& format() const noexcept { return format_; }
  std::int64_t columns() const noexcept { return matrices_.parts[0].matrix.cols; }
  /// The scale of (row, k) as the format stores it; f32 scales only.
  float scale(std::int64_t row, std::int64_t k) const noexcept;
  /// Its byte; e8m0 and e4m3 scales only.
  std::uint8_t scale_code(std::int64_t row, std::int64_t k) const noexcept;
  float global_scale(std::int64_t row) const noexcept;
  std::uint8_t zero_point(std::int64_t row, std::int64_t k) const noexcept;
  /// One byte, or one half of it.
  std::uint8_t code(std::int64_t row, std::int64_t k) const noexcept;

 private:
  struct Place {
    const ConstQuantMatrix* matrix;
    std::int64_t row;
  };
  Place place(std::int64_t row) const noexcept;
  std::int64_t scale_index(const ConstQuantMatrix& m, std::int64_t row, std::int64_t k) const noexcept;

  const ScaledFormat& format_;
  quant::ExpertMatrices matrices_;
  quant::Format key_format_;
};

/// Panel `p`, for k from 0 to `k` (padded to whole groups). Columns and values that only pad decode to zeros.
void pack_scaled_panel(const SourceMatrix& source, const ScaledSource& codes, std::int64_t p, std::int64_t k,
                       std::uint8_t* panel);

/// What decoding e4m3 in registers does not know: throws Error naming the first element that is NaN, or a scale of
/// 2^47 or more.
void check_codes(const Problem& problem, const ExpertWeights& weights, Executor& executor);

}  // namespace conclave::experts::grouped
