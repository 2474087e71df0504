// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What the layer does itself is gone from the problems that its parts see, and nothing else is.
#include "kernel/lower.hpp"

#include <gtest/gtest.h>

#include "kernel/problems.hpp"

namespace conclave {
namespace {

Problem rich() {
  Problem p = test::small_problem();
  p.moe.latent_size = 16;
  p.moe.zero_experts = 2;
  p.moe.shared = {56, true};
  p.moe.routed_scale_on_output = true;
  p.moe.routing.routed_scaling_factor = 2.5;
  return p;
}

TEST(Lower, ModularPartsSeeExpertsOnly) {
  const Problem p = modular_problem(rich());
  EXPECT_EQ(p.moe.hidden_size, 16);
  EXPECT_EQ(p.moe.latent_size, 0);
  EXPECT_EQ(p.moe.num_experts, 6);
  EXPECT_EQ(p.moe.zero_experts, 0);
  EXPECT_EQ(p.moe.shared.intermediate_size, 0);
  EXPECT_EQ(p.moe.top_k, 3);
  EXPECT_EQ(p.moe.intermediate_size, 24);
}

TEST(Lower, FusedSharedSlotsBecomeExperts) {
  Problem p = test::small_problem();
  p.moe.routing.num_fused_shared_experts = 2;
  EXPECT_EQ(modular_problem(p).moe.num_experts, 10);
  EXPECT_EQ(modular_problem(p).moe.top_k, 5);
  EXPECT_TRUE(monolithic_refusal(p).has_value());
}

TEST(Lower, PlainProblemsPassUnchangedButForTheRule) {
  const Problem p = test::small_problem();
  Problem expected = p;
  expected.moe.routing = routing_preset(RoutingMethod::default_);
  EXPECT_EQ(modular_problem(p).moe, expected.moe);
  EXPECT_EQ(monolithic_problem(p).moe, p.moe);
  EXPECT_FALSE(monolithic_refusal(p).has_value());
  EXPECT_FALSE(has_epilogue(p.moe));
}

TEST(Lower, InPlaceEndsAtTheLayerWhereThereIsAnEpilogue) {
  Problem p = test::small_problem();
  p.moe.in_place = true;
  EXPECT_TRUE(modular_problem(p).moe.in_place);
  p.moe.zero_experts = 1;
  EXPECT_FALSE(modular_problem(p).moe.in_place);
}

TEST(Lower, SharedExpertIsAProblemOfOneExpert) {
  const std::optional<Problem> shared = shared_problem(rich());
  ASSERT_TRUE(shared.has_value());
  EXPECT_EQ(shared->moe.num_experts, 1);
  EXPECT_EQ(shared->moe.intermediate_size, 56);
  EXPECT_EQ(shared->moe.hidden_size, 40);
  EXPECT_FALSE(shared_problem(test::small_problem()).has_value());
}

}  // namespace
}  // namespace conclave
