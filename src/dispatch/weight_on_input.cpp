// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a row and its router weight. Out: their product in another row; the caller's tensor never changes.
#include "dispatch/weight_on_input.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/tensor_format.hpp"
#include "cpu/float_convert.hpp"

namespace conclave::dispatch {

void check_prepare(const PrepareInput& input, const MoeConfig& moe) {
  const ConstTensorView& x = input.hidden_states;
  const ConstTensorView ids = input.routing.topk_ids;
  const ConstTensorView weights = input.routing.topk_weights;
  require(x.rank == 2 && x.size(1) == moe.expert_width() && x.dtype == moe.dtype,
          "hidden_states: given {}, expected {} [num_tokens, {}]", x, name_of(moe.dtype), moe.expert_width());
  require(x.size(1) <= 1 || x.stride(1) == 1, "hidden_states: given {}, expected contiguous columns", x);
  require(ids.rank == 2 && ids.size(0) == x.size(0), "topk_ids: given {}, expected {} rows as hidden_states", ids,
          x.size(0));
  require(weights.rank == 2 && weights.size(0) == ids.size(0) && weights.size(1) == ids.size(1),
          "topk_weights: given {}, expected the shape of topk_ids {}", weights, ids);
  require(is_compute_dtype(weights.dtype), "topk_weights: given dtype {}, expected f32, bf16 or f16",
          name_of(weights.dtype));
  require(!input.apply_router_weight_on_input || ids.size(1) == 1,
          "apply_router_weight_on_input: given top_k {}, expected 1", ids.size(1));
}

float router_weight(const Routing& routing, std::int64_t token, std::int64_t pick) {
  const TensorView& w = routing.topk_weights;
  return cpu::load_element(w.data, w.dtype, token * w.stride(0) + pick * w.stride(1));
}

void scale_row(const ConstTensorView& from, float weight, const TensorView& to) {
  constexpr std::int64_t kChunk = 512;  // Stays in the first-level cache.
  float chunk[kChunk];
  for (std::int64_t h = 0; h < from.size(0); h += kChunk) {
    const std::int64_t n = std::min(kChunk, from.size(0) - h);
    cpu::load_f32(from.narrow(0, h, n).data, from.dtype, n, chunk);
    for (std::int64_t i = 0; i < n; ++i) chunk[i] *= weight;
    cpu::store_f32(chunk, to.dtype, n, to.narrow(0, h, n).data);
  }
}

}  // namespace conclave::dispatch
