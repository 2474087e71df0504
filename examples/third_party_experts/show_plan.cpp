// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Registers the kernel before the library's own and prints what would run.
#include <cstdio>

#include "conclave/conclave.hpp"
#include "example_experts.hpp"

int main() {
  conclave::Registry registry = conclave::builtin_registry();
  registry.experts.add_first(example_f32());

  conclave::Problem problem;
  problem.moe.num_experts = 60;
  problem.moe.top_k = 4;
  problem.moe.hidden_size = 2048;
  problem.moe.intermediate_size = 1408;
  problem.moe.dtype = conclave::DType::f32;
  problem.moe.weight_dtype = conclave::DType::f32;
  problem.device = conclave::cpu_facts(2);

  const conclave::Plan plan = conclave::plan(problem, registry);
  std::printf("%s\nchosen: %s\n", plan.report().c_str(), plan.experts.chosen.c_str());
  return 0;
}
