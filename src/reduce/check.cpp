// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the arguments of a reduction. Out: an Error for the first that breaks the contract.
#include "reduce/check.hpp"

#include "base/error.hpp"
#include "base/tensor_format.hpp"

namespace conclave::reduce {

void check_floats(std::string_view what, const ConstTensorView& view, int rank) {
  require(view.rank == rank, "{}: given {}, expected rank {}", what, view, rank);
  require(is_compute_dtype(view.dtype), "{}: given dtype {}, expected f32, bf16 or f16", what, name_of(view.dtype));
  require(view.size(-1) <= 1 || view.stride(-1) == 1, "{}: given {}, expected contiguous columns", what, view);
  require(view.data != nullptr || view.numel() == 0, "{}: given {} with null data", what, view);
}

void check_weighted(const ReduceInput& input, const TensorView& output, int rows_rank) {
  check_floats("rows", input.rows, rows_rank);
  check_floats("output", output, 2);
  const ConstTensorView& ids = input.topk_ids;
  const ConstTensorView& weights = input.topk_weights;
  require(is_compute_dtype(weights.dtype), "topk_weights: given dtype {}, expected f32, bf16 or f16",
          name_of(weights.dtype));
  require(ids.rank == 2 && weights.rank == 2 && ids.size(0) == weights.size(0) && ids.size(1) == weights.size(1),
          "topk_weights: given {}, expected the shape of topk_ids {}", weights, ids);
  require(output.size(0) == ids.size(0), "output: given {}, expected {} rows as topk_ids", output, ids.size(0));
  require(output.size(1) == input.rows.size(-1), "output: given {}, expected {} columns as rows", output,
          input.rows.size(-1));
}

}  // namespace conclave::reduce
