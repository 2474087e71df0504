// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// PhiMoE's rule against numbers worked out by hand and against itself in double; extra slots for shared experts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "router/run_router.hpp"

namespace conclave {
namespace {

using test::route_all;
using test::RouterResult;
using test::routing_problem;

RoutingConfig phi(double jitter) {
  RoutingConfig r = routing_preset(RoutingMethod::sparsemixer);
  r.sparsemixer_jitter = jitter;
  return r;
}

TEST(Sparsemixer, WeighsEachPickAmongItsNeighbours) {
  // Near 2.0 within 2 * 0.1: (2 - 1.7) / 2 = 0.15 is near, (2 - 1) / 2 is not. Then near 1.7: only itself.
  const RouterResult got = route_all(routing_problem(4, 2, phi(0.1)), {1.0F, 2.0F, 1.7F, -3.0F});
  EXPECT_EQ(got.ids, (std::vector<std::int32_t>{1, 2}));
  EXPECT_NEAR(got.weights[0], 1 / (1 + std::exp(-0.3)), 1e-6);
  EXPECT_FLOAT_EQ(got.weights[1], 1.0F);
}

TEST(Sparsemixer, NegativeLogitsAreMeasuredByTheirOwnSize) {
  // max(|x|, top) is |x| when top < 0: (-1 - -1.3) / 1.3 = 0.23 is not within 0.2, (-1 - -1.2) / 1.2 = 0.167 is.
  const RouterResult got = route_all(routing_problem(3, 1, phi(0.1)), {-1.3F, -1.2F, -1.0F});
  EXPECT_EQ(got.ids[0], 2);
  EXPECT_NEAR(got.weights[0], 1 / (1 + std::exp(-0.2)), 1e-6);
}

TEST(Sparsemixer, AllZerosAreNear) {
  const RouterResult got = route_all(routing_problem(4, 2, phi(0.01)), {0, 0, 0, 0});
  EXPECT_EQ(got.ids, (std::vector<std::int32_t>{0, 1}));
  EXPECT_FLOAT_EQ(got.weights[0], 0.25F);
  EXPECT_FLOAT_EQ(got.weights[1], 1.0F / 3.0F) << "the first pick takes no part in the second";
}

TEST(Sparsemixer, MatchesTheRuleInDouble) {
  std::mt19937 random(31);
  std::normal_distribution<float> normal(0.5F, 1.0F);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> logits(16);
    for (float& v : logits) v = normal(random);
    const RouterResult got = route_all(routing_problem(16, 2, phi(0.2)), logits);
    std::vector<double> left(logits.begin(), logits.end());
    for (std::size_t k = 0; k < 2; ++k) {
      const auto best = std::max_element(left.begin(), left.end());
      ASSERT_EQ(got.ids[k], best - left.begin());
      const double top = *best;
      double sum = 0, margin = 1;
      for (const double v : left) {
        const double away = (top - v) / std::max(std::fabs(v), top);
        margin = std::min(margin, std::fabs(away - 0.4));
        if (!(away > 0.4)) sum += std::exp(v - top);
      }
      *best = -INFINITY;
      if (margin < 1e-6) continue;
      ASSERT_NEAR(got.weights[k], 1 / sum, 1e-5) << round;
    }
  }
}

TEST(FusedShared, ItsWeightIsNeitherRenormalisedNorScaled) {
  RoutingConfig r = routing_preset(RoutingMethod::renormalize_naive);
  r.routed_scaling_factor = 2.5;
  r.num_fused_shared_experts = 1;
  r.fused_shared_weight = 1.0;
  const RouterResult got = route_all(routing_problem(4, 2, r), {1, 1, -9, -9});
  EXPECT_EQ(got.ids, (std::vector<std::int32_t>{0, 1, 4}));
  EXPECT_FLOAT_EQ(got.weights[0], 1.25F);
  EXPECT_FLOAT_EQ(got.weights[1], 1.25F);
  EXPECT_EQ(got.weights[2], 1.0F);
}

TEST(Renormalize, EpsilonIsAddedOrIsAFloor) {
  RoutingConfig r = routing_preset(RoutingMethod::sigmoid);
  r.epsilon = 4;
  r.renormalize = Renormalize::sum_plus_epsilon;
  EXPECT_FLOAT_EQ(route_all(routing_problem(2, 2, r), {0, 0}).weights[0], 0.1F);
  r.renormalize = Renormalize::max_epsilon;
  EXPECT_FLOAT_EQ(route_all(routing_problem(2, 2, r), {0, 0}).weights[0], 0.125F);
}

}  // namespace
}  // namespace conclave
