// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The library's conformance checks over a registry that holds the kernel, filtered to it.
#include <cstdio>

#include "conclave/conclave.hpp"
#include "example_experts.hpp"

int main() {
  conclave::Registry registry = conclave::builtin_registry();
  registry.experts.add_first(example_f32());

  const auto executor = conclave::make_executor();
  const auto stream = conclave::Stream::cpu(*executor);
  conclave::VerifyOptions options;
  options.quick = true;
  options.filter = "experts/example_f32";
  const auto report = conclave::verify(registry, conclave::cpu_facts(executor->num_threads()), stream, options);

  for (const auto& row : report.rows)
    if (row.verdict == conclave::Verdict::failed)
      std::printf("FAILED %s, %s, %s: %s\n", row.part.c_str(), row.problem.c_str(), row.check.c_str(),
                  row.message.c_str());
  std::printf("%lld passed, %lld failed, %lld refused, %lld of %lld mutations caught\n",
              static_cast<long long>(report.passed), static_cast<long long>(report.failed),
              static_cast<long long>(report.refused), static_cast<long long>(report.mutations_caught),
              static_cast<long long>(report.mutations));
  // A filter that matches nothing would pass without having run anything.
  return report.ok() && report.passed > 0 ? 0 : 1;
}
