// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// check_ids() of steps.hpp: the first bad slot comes back to the host, then its value.
#include <cuda_runtime_api.h>

#include "base/error.hpp"
#include "conclave/device.hpp"
#include "cuda/check.hpp"
#include "kernel/cuda/find_bad_id.hpp"
#include "kernel/cuda/steps.hpp"

namespace conclave::on_cuda {

void check_ids(const ConstTensorView& ids, std::int64_t num_experts, const TensorView& scratch, Stream stream) {
  if (ids.numel() == 0) return;
  find_bad_id(ids, num_experts, scratch, stream);
  std::int64_t first = 0;
  copy(scratch, TensorView(&first, DType::i64, {1}), stream);
  if (first >= ids.numel()) return;
  const std::int64_t row = first / ids.size(1), slot = first % ids.size(1);
  const ConstTensorView element = ids.at(row).narrow(0, slot, 1);
  std::int64_t wide = 0;
  std::int32_t narrow = 0;
  const bool is_wide = ids.dtype == DType::i64;
  copy(element, TensorView(is_wide ? static_cast<void*>(&wide) : &narrow, ids.dtype, {1}), stream);
  fail(ErrorKind::invalid_argument, "topk_ids[{}, {}]: given {}, expected -1 or 0 to {}", row, slot,
       is_wide ? wide : narrow, num_experts - 1);
}

}  // namespace conclave::on_cuda
