// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
#include "experts/supports.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "support/expert_case.hpp"

namespace conclave::experts {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Problem small_problem() {
  Problem problem;
  problem.moe = test::small_config();
  return problem;
}

TEST(Supports, AnUnquantisedProblemFits) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Problem problem = small_problem();
    problem.moe.dtype = dtype;
    problem.moe.weight_dtype = DType::bf16;
    EXPECT_TRUE(supports_all_unquantized_on_cpu(problem));
  }
}

TEST(Supports, ReasonsNameTheValue) {
  const auto reason = [](auto change) {
    Problem problem = small_problem();
    change(problem);
    return supports_all_unquantized_on_cpu(problem).reason();
  };
  EXPECT_THAT(reason([](Problem& p) { p.device.device = {DeviceType::cuda, 1}; }), HasSubstr("cuda:1"));
  EXPECT_THAT(reason([](Problem& p) { p.quant.weights = QuantKey::mxfp4; }), HasSubstr("mxfp4"));
  EXPECT_THAT(reason([](Problem& p) { p.quant.activations = QuantKey::fp8_token; }), HasSubstr("fp8_token"));
  EXPECT_THAT(reason([](Problem& p) { p.moe.weight_dtype = DType::f64; }), HasSubstr("f64"));
  EXPECT_THAT(reason([](Problem& p) { p.moe.dtype = DType::i8; }), HasSubstr("i8"));
  EXPECT_THAT(reason([](Problem& p) { p.parallel.enable_eplb = true; }), HasSubstr("enable_eplb"));
  EXPECT_THAT(reason([](Problem& p) { p.moe.activation = Activation::situ; }), HasSubstr("beta"));
  EXPECT_THAT(reason([](Problem& p) { p.moe.activation_params.alpha = 2.0; }), HasSubstr("alpha"));
  EXPECT_THAT(reason([](Problem& p) { p.moe.intermediate_size = 0; }), HasSubstr("intermediate_size 0"));
  EXPECT_THAT(reason([](Problem& p) { p.moe.apply_router_weight_on_input = true; }),
              AllOf(HasSubstr("apply_router_weight_on_input"), HasSubstr("3")));
}

TEST(Supports, TheDeviceIsTheFirstReason) {
  Problem problem = small_problem();
  problem.device.device = {DeviceType::cuda, 0};
  problem.quant.weights = QuantKey::mxfp4;
  EXPECT_THAT(supports_all_unquantized_on_cpu(problem).reason(), HasSubstr("device cuda:0"));
}

TEST(Supports, GateAndActivationListsAreHonoured) {
  Problem problem = small_problem();
  EXPECT_FALSE(supports_gate(problem, false, true));
  EXPECT_TRUE(supports_gate(problem, true, false));
  problem.moe.activation = Activation::relu2_no_mul;
  EXPECT_THAT(supports_gate(problem, true, false).reason(), HasSubstr("relu2_no_mul"));
  constexpr std::array kKnown{Activation::silu};
  EXPECT_THAT(supports_activation(problem, kKnown).reason(), HasSubstr("relu2_no_mul"));
}

TEST(Supports, RoutingInsideNeedsNoZeroExperts) {
  Problem problem = small_problem();
  EXPECT_TRUE(supports_inner_routing(problem));
  problem.moe.zero_experts = 2;
  EXPECT_THAT(supports_inner_routing(problem).reason(), HasSubstr("zero_experts 2"));
  problem.moe.router_logits_dtype = DType::i32;
  EXPECT_THAT(supports_logits_dtype(problem).reason(), HasSubstr("i32"));
}

}  // namespace
}  // namespace conclave::experts
