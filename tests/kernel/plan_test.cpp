// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// plan() over the built-in parts: complete reports, monotone workspace, refusals that name every candidate.
#include "conclave/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conclave/device.hpp"
#include "kernel/problems.hpp"

namespace conclave {
namespace {

using ::testing::HasSubstr;

TEST(Plan, NamesEveryCandidateOfEveryStage) {
  const Registry registry = builtin_registry();
  const Plan p = plan(test::small_problem(), registry);
  const std::string report = p.report();
  for (const auto& entry : registry.experts.entries()) EXPECT_THAT(report, HasSubstr(entry.name));
  for (const auto& entry : registry.prepare_finalizes.entries()) EXPECT_THAT(report, HasSubstr(entry.name));
  for (const auto& entry : registry.routers.entries()) EXPECT_THAT(report, HasSubstr(entry.name));
  for (const Candidate& c : p.experts.candidates)
    EXPECT_TRUE(c.name == p.experts.chosen || !c.reason.empty()) << c.name;
}

/// The parts of a GPU are planned and measured on machines that have none.
TEST(Plan, PairsThePartsOfAGpuByWhatTravelsBetweenThem) {
  if (!has_cuda_back_end()) GTEST_SKIP() << "this build has no CUDA back end";
  Problem p = test::small_problem(DType::bf16);
  p.device = DeviceFacts{.device = {DeviceType::cuda, 0}, .name = "a Hopper GPU", .num_threads = 132};
  p.device.compute_capability = 90;
  const Registry registry = builtin_registry();
  const auto with = [&](const char* experts) { return plan(p, registry, {.experts = experts}); };
  EXPECT_EQ(plan(p, registry).experts.chosen, "experts/cuda_grouped_sm90");
  EXPECT_EQ(with("experts/cuda_batched_sm90").prepare_finalize.chosen, "dispatch/cuda_no_ep_batched");
  EXPECT_EQ(with("experts/cuda_reference_batched").prepare_finalize.chosen, "dispatch/cuda_no_ep_batched");
  EXPECT_EQ(with("experts/cuda_unfinalized_sm90").prepare_finalize.chosen, "dispatch/cuda_no_ep");
  // Every expert needs room for every token.
  EXPECT_GT(with("experts/cuda_batched_sm90").workspace_bytes, plan(p, registry).workspace_bytes);
  for (const CostPoint& cost : with("experts/cuda_batched_sm90").costs) EXPECT_THAT(cost.tiles, HasSubstr("masked"));
}

TEST(Plan, RefusalIsTheReport) {
  Problem p = test::small_problem();
  p.quant = {QuantKey::nvfp4, QuantKey::nvfp4};
  const Registry registry = builtin_registry();
  try {
    plan(p, registry);
    FAIL() << "nvfp4 x nvfp4 was planned";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::unsupported);
    for (const auto& entry : registry.experts.entries()) EXPECT_THAT(e.what(), HasSubstr(entry.name));
    EXPECT_THAT(e.what(), HasSubstr("nvfp4"));
  }
}

TEST(Plan, WorkspaceIsMonotoneAndIndependentOfTheReport) {
  const Registry registry = builtin_registry();
  for (const auto& entry : registry.experts.entries()) {
    std::int64_t last = -1;
    for (std::int64_t tokens : {0, 1, 2, 7, 8, 33, 64, 129, 1000}) {
      Problem p = test::small_problem();
      p.moe.max_num_tokens = tokens;
      PlanOptions options;
      options.experts = entry.name;
      std::int64_t bytes = last;
      try {
        bytes = plan(p, registry, options).workspace_bytes;
      } catch (const Error&) {
        break;  // The part refuses this problem on this machine.
      }
      EXPECT_GE(bytes, last) << entry.name << " at " << tokens;
      last = bytes;
    }
  }
}

TEST(Plan, IsDeterministic) {
  const Registry registry = builtin_registry();
  EXPECT_EQ(plan(test::small_problem(), registry).report(), plan(test::small_problem(), registry).report());
}

// Any size works without the caller padding anything.
TEST(Plan, AcceptsOddSizes) {
  const Registry registry = builtin_registry();
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (std::int64_t size : {1, 7, 40, 511, 1408, 2880}) {
      Problem p = test::small_problem(dtype);
      p.moe.hidden_size = p.moe.intermediate_size = size;
      EXPECT_NO_THROW(plan(p, registry)) << name_of(dtype) << " " << size;
    }
}

TEST(Plan, RecordsOwners) {
  Problem p = test::small_problem();
  p.moe.routing.routed_scaling_factor = 2.5;
  p.moe.shared.intermediate_size = 8;
  const std::string report = plan(p, builtin_registry()).report();
  EXPECT_THAT(report, HasSubstr("routed scaling factor 2.5: router, in the weights"));
  EXPECT_THAT(report, HasSubstr("shared expert: layer, added once"));
}

TEST(Plan, RefusesInvalidConfigurations) {
  Problem p = test::small_problem();
  p.moe.top_k = 9;
  EXPECT_THROW(plan(p, builtin_registry()), Error);
}

}  // namespace
}  // namespace conclave
