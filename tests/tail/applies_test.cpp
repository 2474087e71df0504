// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// When a layer may leave its last reduction to the tail, and the value that says why not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conclave/tail.hpp"

namespace conclave {
namespace {

using ::testing::HasSubstr;

Problem problem() {
  Problem p;
  p.moe.num_experts = 8;
  p.moe.top_k = 2;
  p.moe.hidden_size = 40;
  p.moe.intermediate_size = 24;
  return p;
}

TEST(TailFusionApplies, ToPartialOutputsOfTheSameTokens) {
  Problem p = problem();
  EXPECT_TRUE(tail_fusion_applies(p, {}, 1));
  EXPECT_TRUE(tail_fusion_applies(p, {.max_num_tokens = 128}, 128));
  p.parallel = make_parallel(4, 1, 1, 0, 1, 0, 1, false, All2All::none);
  EXPECT_TRUE(tail_fusion_applies(p, {}, 3));
  // Experts over the ranks of one tensor-parallel group: each computes its own experts for the same tokens.
  p.parallel = make_parallel(4, 1, 1, 0, 1, 0, 1, true, All2All::none);
  EXPECT_TRUE(tail_fusion_applies(p, {.quant = QuantKey::fp8_token}, 3));
}

TEST(TailFusionApplies, OrSaysWhichValueIsInTheWay) {
  const auto reason = [](const Problem& p, const TailConfig& config, std::int64_t m) {
    return tail_fusion_applies(p, config, m).reason();
  };
  Problem p = problem();
  EXPECT_THAT(reason(p, {}, 0), HasSubstr("num_tokens 0"));
  EXPECT_THAT(reason(p, {.max_num_tokens = 128}, 129), HasSubstr("num_tokens 129, fused for at most 128"));
  EXPECT_THAT(reason(p, {.quant = QuantKey::mxfp4}, 1), HasSubstr("quantised output mxfp4"));
  p.moe.latent_size = 12;
  EXPECT_THAT(reason(p, {}, 1), HasSubstr("latent_size 12"));
  p = problem();
  p.moe.zero_experts = 2;
  EXPECT_THAT(reason(p, {}, 1), HasSubstr("zero_experts 2"));
  p = problem();
  p.moe.dtype = DType::fp8_e4m3;
  EXPECT_THAT(reason(p, {}, 1), HasSubstr("dtype fp8_e4m3"));
  p = problem();
  p.device.device = {DeviceType::cuda, 1};
  EXPECT_TRUE(tail_fusion_applies(p, {}, 1));
  p.parallel = make_parallel(4, 1, 1, 0, 1, 0, 1, false, All2All::none);
  EXPECT_THAT(reason(p, {}, 1), HasSubstr("device cuda:1 with 4 ranks"));
  p = problem();
  p.parallel = make_parallel(1, 0, 1, 0, 2, 1, 1, true, All2All::all_to_all);
  EXPECT_THAT(reason(p, {}, 1), HasSubstr("experts over 2 ranks with all_to_all (dp 2"));
}

}  // namespace
}  // namespace conclave
