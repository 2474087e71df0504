// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The standard format on Ampere and later, weighted and reduced: summed_experts.hpp.
#include "conclave/registry.hpp"
#include "experts/cuda/grouped_experts.hpp"
#include "experts/cuda/summed_experts.hpp"

namespace conclave::parts {

Entry<Experts> experts_cuda_grouped_sm80();
Entry<Experts> experts_cuda_grouped_sm80() {
  using namespace experts::cuda;
  Entry<Experts> entry;
  entry.name = "experts/cuda_grouped_sm80";
  entry.supports = [](const Problem& problem) { return supports_grouped(problem, kEngineSm80); };
  entry.make = [name = entry.name](const PartContext& context) {
    return make_summed_experts(name, context.problem, kEngineSm80);
  };
  return entry;
}

}  // namespace conclave::parts
