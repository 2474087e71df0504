// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: one experts part, one prepare/finalize part and a problem. Out: a kernel with packed weights that can be run on
// any rows of the problem, each time in freshly poisoned memory that is exactly as large as the kernel asked for.
#pragma once

#include <memory>

#include "conclave/kernel.hpp"
#include "conclave/registry.hpp"
#include "verify/problem.hpp"

namespace conclave::verify_detail {

struct RunResult {
  Tensor output;              ///< [count, H], contiguous
  bool guards_intact = true;  ///< Nothing was written beside the output or behind the workspace.
  bool inputs_intact = true;  ///< On a GPU: no copy of an input was changed.
};

/// Rows [first, first + count) of a problem.
struct Rows {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

class Combination {
 public:
  /// Throws what the parts throw. A monolithic part gets the first router of the registry that supports the problem.
  Combination(const Registry& registry, const Entry<Experts>& experts, const Entry<PrepareFinalize>& ends,
              const ProblemData& data, Stream stream);

  /// Runs on tensors of `data`, which must have the shapes of the problem that the combination was made for.
  RunResult run(const ProblemData& data, Rows rows, Stream stream);
  /// With weights that another part packed.
  RunResult run(const ProblemData& data, Rows rows, const PackedWeights& weights, Stream stream);

  const FusedMoeKernel& kernel() const noexcept { return *kernel_; }
  PackedWeights& packed() noexcept { return *packed_; }

 private:
  std::unique_ptr<FusedMoeKernel> kernel_;
  std::unique_ptr<PackedWeights> packed_;
};

}  // namespace conclave::verify_detail
