// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The measured ceilings are plausible, and no kernel of the library beats them.
#include "conclave/ceilings.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "cpu/ceilings.hpp"
#include "cpu/features.hpp"

namespace conclave {
namespace {

TEST(Ceilings, ArePlausibleAndOrdered) {
  const auto executor = make_executor();
  const CpuCeilings c = measure_cpu_ceilings(*executor);
  // From a tenth of the slowest machine of these years to the caches of the largest.
  EXPECT_GT(c.read_bytes_per_second, 2e8);
  EXPECT_LT(c.read_bytes_per_second, 1e13);
  EXPECT_GT(c.f32_flops, 1e8);
  EXPECT_LT(c.f32_flops, 1e15);
  EXPECT_GE(c.bf16_flops, c.f32_flops);
  EXPECT_EQ(c.f16_flops, c.f32_flops);
}

TEST(Ceilings, WiderUnitsAreNotSlower) {
  if (!cpu::features().avx2) GTEST_SKIP() << "one variant only";
  double seconds_for_one_flop[2] = {1e9, 1e9};
  const auto kernels = cpu::f32_flops_kernels();
  const cpu::FlopsKernel* measured[2] = {&kernels[kernels.size() - 2], &kernels.back()};
  for (int round = 0; round < 5; ++round)
    for (int i = 0; i < 2; ++i) {
      constexpr std::int64_t kIterations = 20000;
      const auto start = std::chrono::steady_clock::now();
      measured[i]->run(kIterations);
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      seconds_for_one_flop[i] =
          std::min(seconds_for_one_flop[i], seconds / (kIterations * measured[i]->flops_per_iteration));
    }
  EXPECT_LT(seconds_for_one_flop[0], seconds_for_one_flop[1]) << "avx2 against plain C++";
}

}  // namespace
}  // namespace conclave
