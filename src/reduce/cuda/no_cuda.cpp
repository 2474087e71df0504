// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// rows.hpp in a build without CUDA.
#include "cuda/no_back_end.hpp"
#include "reduce/cuda/rows.hpp"

namespace conclave::reduce {

void copy_rows_on_cuda(const ConstTensorView&, const TensorView&, Stream) {
  cuda::no_back_end();
}
void sum_rows_on_cuda(const ReduceInput&, const SlotTable&, const TensorView&, Stream) {
  cuda::no_back_end();
}
void sum_batched_rows_on_cuda(const ReduceInput&, const SlotTable&, const TensorView&, Stream) {
  cuda::no_back_end();
}

}  // namespace conclave::reduce
