// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The processor is asked, not the build: what is reported must be what the kernel lists for this machine, and every
// variant that claims to run here must run.
#include "cpu/features.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <fstream>
#include <sstream>
#include <string>

#include "conclave/error.hpp"
#include "cpu/variants.hpp"

namespace conclave {
namespace {

/// The flags of the first processor in /proc/cpuinfo; empty if there are none.
std::string kernel_flags() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("flags", 0) == 0) return line.substr(line.find(':') + 1) + " ";
  return "";
}

TEST(Features, AgreeWithTheKernelsList) {
  const std::string flags = kernel_flags();
  if (flags.empty()) GTEST_SKIP() << "no flags in /proc/cpuinfo";
  const auto has = [&](const std::string& flag) { return flags.find(" " + flag + " ") != std::string::npos; };
  const CpuFeatures f = cpu::detect_features();
  EXPECT_EQ(f.avx2, has("avx2") && has("fma") && has("f16c"));
  EXPECT_EQ(f.avx512, has("avx512f") && has("avx512bw") && has("avx512vl") && has("avx512dq"));
  EXPECT_EQ(f.avx512_vnni, f.avx512 && has("avx512_vnni"));
  EXPECT_EQ(f.avx512_bf16, f.avx512 && has("avx512_bf16"));
  // The kernel may refuse the tile state although the processor has it, never the other way round.
  EXPECT_TRUE(!f.amx_bf16 || has("amx_bf16"));
  EXPECT_TRUE(!f.amx_int8 || has("amx_int8"));
  EXPECT_EQ(f, cpu::features());
}

TEST(Features, EveryVariantThatClaimsToRunRuns) {
  for (const auto& kernels : {cpu::f32_flops_kernels(), cpu::bf16_flops_kernels()})
    for (const cpu::FlopsKernel& kernel : kernels)
      if (kernel.runs_on(cpu::features())) kernel.run(10);
  for (const auto& kernel : cpu::float_converters()) {
    if (!kernel.runs_on(cpu::features())) continue;
    const std::uint16_t one = 0x3F80;
    float value = 0;
    kernel.bf16_to_f32(&one, 1, &value);
    EXPECT_EQ(value, 1.0F) << kernel.name;
  }
}

TEST(Features, NoVariantClaimsToRunWithoutItsUnit) {
  const CpuFeatures nothing;
  EXPECT_FALSE(cpu::dense_kernels().empty());
  const auto run_without_units = [&](const auto& kernels) {
    int count = 0;
    for (const auto& kernel : kernels) count += kernel.runs_on(nothing) ? 1 : 0;
    return count;
  };
  EXPECT_EQ(run_without_units(cpu::dense_kernels()), 1);
  EXPECT_EQ(run_without_units(cpu::float_converters()), 1);
  EXPECT_EQ(run_without_units(cpu::f32_flops_kernels()), 1);
  EXPECT_EQ(run_without_units(cpu::read_kernels()), 1);
  EXPECT_EQ(run_without_units(cpu::bf16_flops_kernels()), 0);
}

TEST(AvailableCpus, FollowsTheAffinityMask) {
  cpu_set_t before;
  CPU_ZERO(&before);
  if (sched_getaffinity(0, sizeof(before), &before) != 0) GTEST_SKIP() << "more CPUs than a cpu_set_t";
  EXPECT_EQ(cpu::available_cpus(), CPU_COUNT(&before));
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(cpu::available_cpus(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST(CpuFacts, DescribeThisMachine) {
  const DeviceFacts facts = cpu_facts(3);
  EXPECT_EQ(facts.device, Device{});
  EXPECT_EQ(facts.num_threads, 3);
  EXPECT_EQ(facts.cpu, cpu::features());
  EXPECT_FALSE(facts.name.empty());
  EXPECT_NE(facts.name.front(), ' ');
  EXPECT_GE(facts.l2_bytes, 64 << 10);
  EXPECT_EQ(facts.bytes_per_second, 0) << "ceilings are measured by another call";
  EXPECT_THROW(cpu_facts(0), Error);
}

}  // namespace
}  // namespace conclave
