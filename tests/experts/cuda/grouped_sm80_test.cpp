// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What the part for Ampere and later decides on the host: its tiles, and the GPUs that get it. Facts of GPUs are given
// by hand, so no GPU is needed; what it computes is in grouped_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "conclave/device.hpp"
#include "conclave/plan.hpp"
#include "experts/cuda/choose_mma.hpp"

namespace conclave {
namespace {

using experts::cuda::choose_mma;
using experts::cuda::GemmChoice;
using experts::cuda::GemmProblem;
using experts::cuda::GemmTile;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr GemmProblem kMixtral{.num_experts = 8, .top_k = 2, .hidden_size = 4096, .intermediate_size = 14336};
constexpr GemmProblem kQwen{.num_experts = 128, .top_k = 8, .hidden_size = 2048, .intermediate_size = 768};

TEST(ChooseMma, TilesAreAsWideAsAnExpertsRows) {
  // Rows of an expert with any: 1, some 4, 32, 64, 256.
  EXPECT_EQ(choose_mma(kQwen, 1).tile, (GemmTile{16, 64}));
  EXPECT_EQ(choose_mma(kQwen, 64).tile, (GemmTile{16, 64}));
  EXPECT_EQ(choose_mma(kQwen, 512).tile, (GemmTile{64, 128}));
  EXPECT_EQ(choose_mma(kQwen, 1024).tile, (GemmTile{128, 128}));
  EXPECT_EQ(choose_mma(kMixtral, 1024).tile, (GemmTile{128, 128}));
}

TEST(ChooseMma, RareActivationsStayOnTheTilesThatTheyAreCompiledFor) {
  GemmProblem p = kMixtral;
  p.common_activation = false;
  for (std::int64_t m = 1; m <= 131072; m *= 2) {
    EXPECT_LE(choose_mma(p, m).tile.tokens, 64) << m;
  }
}

TEST(ChooseMma, BothProductsShareAMapAndNothingIsSorted) {
  for (const GemmProblem& p : {kMixtral, kQwen})
    for (std::int64_t m = 0; m <= 131072; m = 2 * m + 1) {
      const GemmChoice choice = choose_mma(p, m);
      EXPECT_EQ(choice.tile.map_rows(), choice.second.map_rows()) << m;
      EXPECT_EQ(choice.tile.blocks, 1) << m;
      EXPECT_FALSE(choice.sorts_rows) << m;
    }
}

class GroupedSm80Plan : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_cuda_back_end()) GTEST_SKIP() << "this build has no CUDA back end";
  }

  /// Qwen3-30B-A3B on a GPU of this compute capability.
  static Problem on_gpu(int compute_capability) {
    Problem p;
    p.moe.num_experts = 128;
    p.moe.top_k = 8;
    p.moe.hidden_size = 2048;
    p.moe.intermediate_size = 768;
    p.moe.dtype = p.moe.weight_dtype = DType::bf16;
    p.moe.routing = routing_preset(RoutingMethod::renormalize);
    p.device = {.device = {DeviceType::cuda, 0}, .name = "a GPU", .num_threads = 108};
    p.device.compute_capability = compute_capability;
    return p;
  }
  static std::string chosen(const Problem& p) { return plan(p, builtin_registry()).experts.chosen; }
  static std::string reason(const Problem& p) {
    return builtin_registry().experts.find("experts/cuda_grouped_sm80")->supports(p).reason();
  }
};

TEST_F(GroupedSm80Plan, EveryGpuFromAmpereOnGetsAGroupedPart) {
  EXPECT_EQ(chosen(on_gpu(80)), "experts/cuda_grouped_sm80");
  EXPECT_EQ(chosen(on_gpu(86)), "experts/cuda_grouped_sm80");
  EXPECT_EQ(chosen(on_gpu(89)), "experts/cuda_grouped_sm80");
  EXPECT_EQ(chosen(on_gpu(90)), "experts/cuda_grouped_sm90");
  EXPECT_EQ(chosen(on_gpu(100)), "experts/cuda_grouped_sm80");
  Problem f16 = on_gpu(80);
  f16.moe.dtype = f16.moe.weight_dtype = DType::f16;
  EXPECT_EQ(chosen(f16), "experts/cuda_grouped_sm80");
}

TEST_F(GroupedSm80Plan, RefusalsNameTheValueAndTheReferenceTakesOver) {
  EXPECT_THAT(reason(on_gpu(75)), HasSubstr("7.5"));
  EXPECT_EQ(chosen(on_gpu(75)), "experts/cuda_reference");
  Problem f32 = on_gpu(80);
  f32.moe.dtype = f32.moe.weight_dtype = DType::f32;
  EXPECT_THAT(reason(f32), HasSubstr("f32"));
  EXPECT_EQ(chosen(f32), "experts/cuda_reference");
  Problem mixed = on_gpu(80);
  mixed.moe.weight_dtype = DType::f16;
  EXPECT_THAT(reason(mixed), HasSubstr("weight_dtype f16"));
  Problem many = on_gpu(80);
  many.moe.num_experts = 1025;
  EXPECT_THAT(reason(many), HasSubstr("1025"));
}

TEST_F(GroupedSm80Plan, TheTileMapOfManyExpertsNeedsTheSharedMemoryOfALargeGpu) {
  Problem p = on_gpu(80);
  p.moe.num_experts = 1024;
  EXPECT_EQ(chosen(p), "experts/cuda_grouped_sm80");
  for (const int capability : {86, 89, 120}) {
    p.device.compute_capability = capability;
    EXPECT_THAT(reason(p), AllOf(HasSubstr("1024"), HasSubstr("512")));
    EXPECT_EQ(chosen(p), "experts/cuda_reference");
  }
}

TEST_F(GroupedSm80Plan, ThePlanNamesTheTiles) {
  Problem p = on_gpu(80);
  p.moe.max_num_tokens = 1024;
  const Plan planned = plan(p, builtin_registry(), {.report_tokens = {1, 1024}});
  EXPECT_EQ(planned.costs.at(0).tiles, "16 tokens x 64 weight rows, gathered");
  EXPECT_EQ(planned.costs.at(1).tiles, "128 tokens x 128 weight rows, gathered");
}

}  // namespace
}  // namespace conclave
