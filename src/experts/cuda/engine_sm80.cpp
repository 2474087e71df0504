// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The engine of every GPU with the tensor cores of Ampere or later: the product of mma_gemm.hpp.
#include <fmt/format.h>

#include "experts/cuda/choose_mma.hpp"
#include "experts/cuda/engine.hpp"
#include "experts/cuda/mma_gemm.hpp"

namespace conclave::experts::cuda {
namespace {

/// The tile map counts 128 bytes an expert beside some 20 KiB of its own in a block's shared memory. That is 99 KiB on
/// the smaller GPUs of each generation; the others have 163 KiB and more, enough for all that supports_grouped() takes.
constexpr std::int64_t kMaxExpertsOfSmallGpus = 512;
constexpr bool is_small(int compute_capability) {
  return compute_capability == 86 || compute_capability == 89 || compute_capability >= 120;
}

Support supports_sm80(const Problem& problem) {
  const int capability = problem.device.compute_capability;
  if (capability < 80)
    return Support::no(fmt::format("compute capability {}.{}, it uses instructions of 8.0 and later", capability / 10,
                                   capability % 10));
  const std::int64_t experts = problem.moe.num_weight_experts();
  if (is_small(capability) && experts > kMaxExpertsOfSmallGpus)
    return Support::no(fmt::format("num_experts {}, it takes at most {} on compute capability {}.{}", experts,
                                   kMaxExpertsOfSmallGpus, capability / 10, capability % 10));
  return Support::yes();
}

}  // namespace

constinit const GroupedEngine kEngineSm80{supports_sm80, choose_mma, mma_gemm, nullptr};

}  // namespace conclave::experts::cuda
