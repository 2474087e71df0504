// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The predicates of supports.hpp.
#include "experts/cuda/supports.hpp"

#include <fmt/format.h>

#include "experts/supports.hpp"

namespace conclave::experts::cuda {
namespace {

/// Ranks would have to exchange or sum what lies on GPUs, and no communicator does that yet.
Support supports_one_rank(const Problem& problem) {
  const ParallelConfig& p = problem.parallel;
  if (p.enable_eplb) return Support::no("enable_eplb: replicas are chosen on the host");
  if (p.tp_size * p.ep_size * p.dp_size * p.pcp_size > 1)
    return Support::no(fmt::format("{} ranks (tp {}, ep {}, dp {}, pcp {}), it runs on one",
                                   p.tp_size * p.ep_size * p.dp_size * p.pcp_size, p.tp_size, p.ep_size, p.dp_size,
                                   p.pcp_size));
  return Support::yes();
}

}  // namespace

Support supports_unquantized_on_cuda(const Problem& problem) {
  return first_refusal(supports_device(problem, DeviceType::cuda), supports_gate(problem, true, true),
                       supports_activation(problem, all_activations()), supports_unquantized(problem),
                       supports_compute_dtypes(problem), supports_one_rank(problem), supports_any_shape(problem));
}

}  // namespace conclave::experts::cuda
