// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The floor against numbers worked out by hand.
#include <gtest/gtest.h>

#include <cmath>

#include "conclave/plan.hpp"
#include "kernel/problems.hpp"

namespace conclave {
namespace {

Problem qwen3_30b() {
  Problem p;
  p.moe.num_experts = 128;
  p.moe.top_k = 8;
  p.moe.hidden_size = 2048;
  p.moe.intermediate_size = 768;
  p.device.bytes_per_second = 75e9;
  p.device.bf16_flops = 868e9;
  return p;
}

// One token reads 8 experts of 3 * 768 * 2048 bf16 and the router: 75.5 MB + 0.5 MB, 1.01 ms at 75 GB/s.
TEST(Cost, OneTokenReadsTopKExperts) {
  const CostPoint cost = cost_of(qwen3_30b(), 1);
  EXPECT_NEAR(cost.active_experts, 8, 1e-9);
  EXPECT_NEAR(cost.weight_bytes, 8.0 * 3 * 768 * 2048 * 2 + 128 * 2048 * 2, 1);
  EXPECT_TRUE(cost.memory_bound);
  EXPECT_NEAR(cost.seconds, 1.014e-3, 0.002e-3);
}

// 512 tokens: 38.7 GFLOP of experts at 868 GFLOP/s.
TEST(Cost, ManyTokensAreComputeBound) {
  const CostPoint cost = cost_of(qwen3_30b(), 512);
  EXPECT_NEAR(cost.flops, 2.0 * 512 * 8 * 3 * 768 * 2048 + 2.0 * 512 * 128 * 2048, 1);
  EXPECT_FALSE(cost.memory_bound);
  EXPECT_NEAR(cost.seconds, cost.flops / 868e9, 1e-9);
  EXPECT_NEAR(cost.active_experts, 128, 1e-6);
}

TEST(Cost, EightTokensTouchTheExpectedNumberOfExperts) {
  EXPECT_NEAR(cost_of(qwen3_30b(), 8).active_experts, 128 * (1 - std::pow(1 - 8.0 / 128, 8)), 1e-9);
}

TEST(Cost, NoTokensCostNothing) {
  const CostPoint cost = cost_of(qwen3_30b(), 0);
  EXPECT_EQ(cost.weight_bytes + cost.activation_bytes + cost.flops + cost.seconds, 0);
}

TEST(Cost, WithoutCeilingsThereIsNoTime) {
  Problem p = qwen3_30b();
  p.device.bytes_per_second = 0;
  EXPECT_EQ(cost_of(p, 8).seconds, 0);
}

TEST(Cost, CountsSharedLatentQuantisedAndRemoteExperts) {
  Problem p = qwen3_30b();
  const CostPoint plain = cost_of(p, 1);
  p.moe.shared.intermediate_size = 100;
  EXPECT_NEAR(cost_of(p, 1).weight_bytes - plain.weight_bytes, 3 * 100 * 2048 * 2, 1);
  p = qwen3_30b();
  p.quant.weights = QuantKey::fp8_block128;
  EXPECT_NEAR(cost_of(p, 1).weight_bytes, 8.0 * (3 * 768 * 2048 + 3 * 6 * 16 * 4) + 128 * 2048 * 2, 1);
  p = qwen3_30b();
  p.parallel = make_parallel(4, 1, 1, 0, 1, 0, 1, true, All2All::none);
  EXPECT_NEAR(cost_of(p, 1).active_experts, 2, 1e-9);
  p = qwen3_30b();
  p.moe.activation = Activation::relu2_no_mul;
  EXPECT_NEAR(cost_of(p, 1).weight_bytes, 8.0 * 2 * 768 * 2048 * 2 + 128 * 2048 * 2, 1);
}

}  // namespace
}  // namespace conclave
