// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Is this the right answer? Errors of a result against an expected one, and the tolerance that decides.
#pragma once

#include <optional>
#include <string>

#include "conclave/case_file.hpp"
#include "conclave/stream.hpp"

namespace conclave::cli {

/// Element by element if given, else the relative error of the whole tensor.
struct Tolerance {
  double relative = 0;
  std::optional<CaseTolerance> per_element;
};

/// 1e-5 for f32, 6e-3 for bf16 and f16: what rounding of inputs, intermediate and output costs in that type.
Tolerance tolerance_of(DType dtype);
std::string to_string(const Tolerance& tolerance);

struct Comparison {
  double max_abs = 0;
  double relative = 0;
  bool ok = false;
};

/// Any float types of equal shape. NaN matches NaN only.
Comparison compare(const ConstTensorView& given, const ConstTensorView& expected, const Tolerance& tolerance,
                   Executor& executor);

struct IdComparison {
  std::int64_t different = 0;  ///< Ids of a row that the other one lacks, over all rows.
  bool same_order = true;      ///< Every id is also in its slot.
};

/// The first `columns` columns of two i32 matrices of equal height. Order is reported, not judged, because not every
/// architecture's router defines it (torch.topk with sorted=False).
IdComparison compare_ids(const ConstTensorView& given, const ConstTensorView& expected, std::int64_t columns);

}  // namespace conclave::cli
