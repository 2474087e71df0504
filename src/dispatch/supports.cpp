// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a problem. Out: the first reason why a prepare and finalize cannot run it.
#include "dispatch/supports.hpp"

#include <fmt/format.h>

#include "quant/format.hpp"

namespace conclave::dispatch {

namespace {

Support supports_activations(const Problem& problem, DeviceType device) {
  const MoeConfig& moe = problem.moe;
  if (problem.device.device.type != device)
    return Support::no(fmt::format("device {}, it runs on {}", to_string(problem.device.device),
                                   device == DeviceType::cpu ? "cpu" : "cuda"));
  // Rows travel as codes or, to experts that quantise what they get (expects_unquantized_inputs), as they are.
  if (const Support key = quant::supports_key(problem.quant.activations, QuantRole::activations); !key) return key;
  if (!is_compute_dtype(moe.dtype))
    return Support::no(fmt::format("dtype {}, it takes f32, bf16 or f16", name_of(moe.dtype)));
  return Support::yes();
}

Support supports_weight_on_input(const Problem& problem) {
  const MoeConfig& moe = problem.moe;
  if (moe.apply_router_weight_on_input && moe.num_slots() != 1)
    return Support::no(
        fmt::format("apply_router_weight_on_input with {} slots for each token, it is defined for 1", moe.num_slots()));
  return Support::yes();
}

Support supports_replicas(const Problem& problem) {
  if (problem.parallel.enable_eplb) return Support::no("enable_eplb: parts see slots, the layer maps experts to them");
  return Support::yes();
}

Support stays_on_one_rank(const ParallelConfig& parallel) {
  if (parallel.use_all2all())
    return Support::no(fmt::format(
        "use_all2all: dp_size {}, pcp_size {}, sp_size {} exchange tokens over {} ranks by "
        "{}, it stays on one rank",
        parallel.dp_size, parallel.pcp_size, parallel.sp_size, parallel.ep_size, name_of(parallel.all2all)));
  if (parallel.sp_size > 1)
    return Support::no(fmt::format("sp_size {}: tokens are split over ranks, it stays on one rank", parallel.sp_size));
  return Support::yes();
}

Support exchanges_by(const ParallelConfig& parallel, All2All all2all) {
  if (parallel.all2all != all2all)
    return Support::no(fmt::format("all2all {}, it does {}", name_of(parallel.all2all), name_of(all2all)));
  if (parallel.ep_size > 1 && !parallel.use_all2all())
    return Support::no(
        fmt::format("dp_size {}, pcp_size {}, sp_size {}: all {} ranks see the same tokens, it exchanges tokens",
                    parallel.dp_size, parallel.pcp_size, parallel.sp_size, parallel.ep_size));
  if (parallel.tp_size > 1)
    return Support::no(fmt::format("tp_size {}: experts are cut over ranks, it needs whole ones", parallel.tp_size));
  return Support::yes();
}

Support supports_local_on(const Problem& problem, DeviceType device) {
  return first_refusal(supports_activations(problem, device), stays_on_one_rank(problem.parallel),
                       supports_replicas(problem), supports_weight_on_input(problem));
}

}  // namespace

Support supports_local(const Problem& problem) {
  return supports_local_on(problem, DeviceType::cpu);
}

Support supports_local_on_cuda(const Problem& problem) {
  return supports_local_on(problem, DeviceType::cuda);
}

Support supports_exchange(const Problem& problem, All2All all2all) {
  return first_refusal(supports_activations(problem, DeviceType::cpu), exchanges_by(problem.parallel, all2all),
                       supports_replicas(problem), supports_weight_on_input(problem));
}

}  // namespace conclave::dispatch
