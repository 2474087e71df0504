// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a problem. Out: the first reason why a local prepare and finalize cannot run it.
#include "dispatch/supports.hpp"

#include <fmt/format.h>

namespace conclave::dispatch {

Support supports_local(const Problem& problem) {
  const MoeConfig& moe = problem.moe;
  const ParallelConfig& parallel = problem.parallel;
  if (problem.device.device.type != DeviceType::cpu)
    return Support::no(fmt::format("device {}, it runs on cpu", to_string(problem.device.device)));
  if (problem.quant.activations != QuantKey::none)
    return Support::no(
        fmt::format("quantisation of activations {}, it quantises nothing", name_of(problem.quant.activations)));
  if (!is_compute_dtype(moe.dtype))
    return Support::no(fmt::format("dtype {}, it takes f32, bf16 or f16", name_of(moe.dtype)));
  if (parallel.use_all2all())
    return Support::no(fmt::format(
        "use_all2all: dp_size {}, pcp_size {}, sp_size {} exchange tokens over {} ranks by "
        "{}, it stays on one rank",
        parallel.dp_size, parallel.pcp_size, parallel.sp_size, parallel.ep_size, name_of(parallel.all2all)));
  if (parallel.sp_size > 1)
    return Support::no(fmt::format("sp_size {}: tokens are split over ranks, it stays on one rank", parallel.sp_size));
  if (parallel.enable_eplb) return Support::no("enable_eplb: replicas of experts have no mapping yet");
  if (moe.apply_router_weight_on_input && moe.num_slots() != 1)
    return Support::no(
        fmt::format("apply_router_weight_on_input with {} slots for each token, it is defined for 1", moe.num_slots()));
  return Support::yes();
}

}  // namespace conclave::dispatch
