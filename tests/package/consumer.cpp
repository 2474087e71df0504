// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What a program sees of an installed Conclave: headers and library of one version, names, parts, a plan.
#include <cstdio>
#include <string>

#include "conclave/conclave.hpp"

int main() {
  const std::string headers = std::to_string(CONCLAVE_VERSION_MAJOR) + "." + std::to_string(CONCLAVE_VERSION_MINOR) +
                              "." + std::to_string(CONCLAVE_VERSION_PATCH);
  if (headers != conclave::version()) {
    std::printf("headers %s, library %s\n", headers.c_str(), conclave::version());
    return 1;
  }
  if (name_of(conclave::DType::bf16) != "bf16") return 1;

  conclave::Problem problem;
  problem.moe.num_experts = 8;
  problem.moe.top_k = 2;
  problem.moe.hidden_size = 96;
  problem.moe.intermediate_size = 40;
  problem.device = conclave::cpu_facts(1);
  const conclave::Plan plan = conclave::plan(problem, conclave::builtin_registry());
  std::printf("conclave %s would run %s\n", conclave::version(), plan.experts.chosen.c_str());
  return plan.workspace_bytes > 0 ? 0 : 1;
}
