// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Routing failures that other projects reported, each as the numbers of its report.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "router/run_router.hpp"

namespace conclave {
namespace {

using test::route_all;
using test::RouterResult;
using test::routing_problem;
using Ids = std::vector<std::int32_t>;

Problem preset(std::int64_t experts, std::int64_t top_k, RoutingMethod method) {
  return routing_problem(experts, top_k, routing_preset(method));
}

// Each pick of a NaN row was expert 0.
TEST(RouterCases, NanRowsAndInfinities) {
  for (const RoutingMethod method : {RoutingMethod::default_, RoutingMethod::renormalize_naive, RoutingMethod::sigmoid,
                                     RoutingMethod::sigmoid_renorm})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Problem p = preset(8, 4, method);
      const RouterResult nan = route_all(p, std::vector<float>(8, NAN), {}, dtype);
      EXPECT_EQ(nan.ids, (Ids{0, 1, 2, 3}));
      EXPECT_EQ(nan.weights, (std::vector<float>(4, 0.0F)));
      EXPECT_EQ(route_all(p, {1, 2, NAN, 3, 0, -1, -2, -3}, {}, dtype).ids, (Ids{3, 1, 0, 4}));
      EXPECT_EQ(route_all(p, std::vector<float>(8, INFINITY), {}, dtype).ids, (Ids{0, 1, 2, 3}));
      EXPECT_EQ(route_all(p, std::vector<float>(8, -INFINITY), {}, dtype).ids, (Ids{0, 1, 2, 3}));
    }
  // The numbers keep their softmax among themselves.
  const RouterResult one = route_all(preset(8, 4, RoutingMethod::default_), {1, 2, NAN, 3, 0, -1, -2, -3});
  const RouterResult without = route_all(preset(7, 4, RoutingMethod::default_), {1, 2, 3, 0, -1, -2, -3});
  EXPECT_EQ(one.weights, without.weights);
  const RouterResult infinite = route_all(preset(8, 4, RoutingMethod::default_), std::vector<float>(8, INFINITY));
  EXPECT_EQ(infinite.weights, std::vector<float>(4, 0.125F));
  const RouterResult single = route_all(preset(8, 2, RoutingMethod::default_), {0, 0, 0, INFINITY, 0, 9, 0, 0});
  EXPECT_EQ(single.ids, (Ids{3, 0}));
  EXPECT_EQ(single.weights, (std::vector<float>{1, 0}));
}

// The reduction's identity came out as an id; the weights were lost to NaN.
TEST(RouterCases, HalfNanRow) {
  const RouterResult got = route_all(preset(6, 2, RoutingMethod::renormalize_naive), {NAN, 0, 1, 2, 3, NAN});
  EXPECT_EQ(got.ids, (Ids{4, 3}));
  const double first = 1 / (1 + std::exp(-1.0));
  EXPECT_NEAR(got.weights[0], first, 1e-6);
  EXPECT_NEAR(got.weights[1], 1 - first, 1e-6);
}

// One thread for each of the first 256 experts.
TEST(RouterCases, WinnersBeyondExpert256) {
  for (const std::int64_t experts : {300, 512}) {
    Ids winners{338, 300, 511, 256, 257, 260, 499, 400, 333, 290};
    for (std::int32_t& id : winners) id = static_cast<std::int32_t>(id % experts);
    std::vector<float> logits(static_cast<std::size_t>(experts), 0.0F);
    for (std::size_t i = 0; i < winners.size(); ++i)
      logits[static_cast<std::size_t>(winners[i])] = 10.0F - static_cast<float>(i) / 2;
    for (const RoutingMethod method : {RoutingMethod::renormalize, RoutingMethod::sigmoid, RoutingMethod::default_})
      EXPECT_EQ(route_all(preset(experts, 10, method), logits).ids, winners);
  }
}

// The bias leaked into the weights in one specialisation: ids come from score + bias, weights from the score.
TEST(RouterCases, BiasChoosesAndDoesNotWeigh) {
  std::mt19937 random(5);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (const auto& [experts, top_k] : {std::pair<std::int64_t, std::int64_t>{128, 8}, {64, 6}, {8, 2}, {384, 6}})
    for (const Scoring scoring : {Scoring::softmax, Scoring::sigmoid})
      for (const bool renormalize : {false, true}) {
        RoutingConfig r;
        r.scoring = scoring;
        r.has_bias = true;
        if (renormalize) r.renormalize = Renormalize::sum_plus_epsilon;
        std::vector<float> logits(static_cast<std::size_t>(experts)), bias(logits.size(), 0.0F);
        for (float& v : logits) v = uniform(random);
        Ids expected;
        for (std::int64_t k = 0; k < top_k; ++k) {  // The bias alone decides.
          expected.push_back(static_cast<std::int32_t>(experts - 1 - 2 * k));
          bias[static_cast<std::size_t>(expected.back())] = 100.0F - 5 * static_cast<float>(k);
        }
        const RouterResult got = route_all(routing_problem(experts, top_k, r), logits, bias);
        EXPECT_EQ(got.ids, expected);
        r.has_bias = false;
        const RouterResult all = route_all(routing_problem(experts, experts, r), logits);
        const float sum = std::accumulate(got.weights.begin(), got.weights.end(), 0.0F);
        for (std::size_t k = 0; k < expected.size(); ++k) {
          const auto at = std::find(all.ids.begin(), all.ids.end(), expected[k]) - all.ids.begin();
          const float unbiased = all.weights[static_cast<std::size_t>(at)];
          EXPECT_EQ(got.weights[k] == unbiased, !renormalize);
        }
        EXPECT_EQ(std::fabs(sum - 1.0F) < 1e-6F, renormalize);
      }
}

// Groups that lost were set to 0, which beats negative scores.
TEST(RouterCases, MaskedGroupsLoseEvenToNegativeScores) {
  RoutingConfig r = routing_preset(RoutingMethod::deepseek_v3);
  r.num_expert_group = 2;
  r.topk_group = 1;
  const float low = std::log(0.4F / 0.6F);
  const RouterResult got = route_all(routing_problem(4, 2, r), {0, 0, low, low}, {-1.0F, -1.2F, -1.1F, -1.1F});
  EXPECT_EQ(got.ids, (Ids{0, 1}));
  EXPECT_NEAR(got.weights[0], 0.5F, 1e-6F);
  EXPECT_NEAR(got.weights[1], 0.5F, 1e-6F);
}

// 0 / 0 where every chosen weight underflowed.
TEST(RouterCases, UnderflowGivesZeroWeights) {
  for (const RoutingMethod method : {RoutingMethod::deepseek_v3, RoutingMethod::minimax2}) {
    const RouterResult got =
        route_all(preset(8, 2, method), std::vector<float>(8, -100.0F), std::vector<float>(8, 0.0F));
    EXPECT_EQ(got.ids, (Ids{0, 1}));
    EXPECT_EQ(got.weights, (std::vector<float>{0, 0}));
  }
  RoutingConfig no_epsilon = routing_preset(RoutingMethod::sigmoid_renorm);
  no_epsilon.epsilon = 0;
  EXPECT_EQ(route_all(routing_problem(8, 2, no_epsilon), std::vector<float>(8, -100.0F)).weights,
            (std::vector<float>{0, 0}));
  const RouterResult huge = route_all(preset(8, 3, RoutingMethod::renormalize_naive), {0, 0, 0, 0, 500, 0, 0, 0});
  EXPECT_EQ(huge.ids, (Ids{4, 0, 1}));
  EXPECT_EQ(huge.weights, (std::vector<float>{1, 0, 0}));
}

// Caps of 8, 10, 11 or 22 picks, and of 64 to 1024 experts.
TEST(RouterCases, AnyNumberOfPicksAndExperts) {
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{512, 10}, {512, 22},  {896, 16}, {2048, 32}, {16, 16},
                                                          {8, 8},    {1, 1},     {4096, 8}, {4096, 33}, {4095, 4095},
                                                          {1025, 1}, {257, 256}, {64, 33}};
  for (const auto& [experts, top_k] : shapes) {
    std::vector<float> logits(static_cast<std::size_t>(experts));
    std::iota(logits.begin(), logits.end(), 0.0F);
    std::shuffle(logits.begin(), logits.end(), std::mt19937(7));
    Ids expected(logits.size());
    std::iota(expected.begin(), expected.end(), 0);
    std::sort(expected.begin(), expected.end(), [&](std::int32_t a, std::int32_t b) {
      return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
    });
    expected.resize(static_cast<std::size_t>(top_k));
    EXPECT_EQ(route_all(preset(experts, top_k, RoutingMethod::top_k), logits).ids, expected);
  }
}

TEST(RouterCases, MorePicksThanExpertsAndNoneAreRefusedWithTheBound) {
  for (const Entry<Router>& entry : test::routers_on_cpu()) {
    const Support more = entry.supports(preset(8, 9, RoutingMethod::default_));
    EXPECT_FALSE(more);
    EXPECT_NE(more.reason().find("top_k 9"), std::string::npos) << more.reason();
    EXPECT_NE(more.reason().find("num_experts 8"), std::string::npos) << more.reason();
    EXPECT_FALSE(entry.supports(preset(8, 0, RoutingMethod::default_)));
  }
}

// softmax, top-k, divide = top-k, softmax: also with logits far from 0.
TEST(RouterCases, BothOrdersOfSoftmaxAgree) {
  std::mt19937 random(8);
  std::uniform_real_distribution<float> uniform(-4, 4);
  for (const float offset : {-80.0F, 0.0F, 80.0F}) {
    std::vector<float> logits(160 * 3);
    for (float& v : logits) v = uniform(random) + offset;
    const RouterResult a = route_all(preset(160, 8, RoutingMethod::renormalize), logits, {}, DType::bf16);
    const RouterResult b = route_all(preset(160, 8, RoutingMethod::renormalize_naive), logits, {}, DType::bf16);
    EXPECT_EQ(a.ids, b.ids);
    for (std::size_t i = 0; i < a.weights.size(); ++i) EXPECT_NEAR(a.weights[i], b.weights[i], 1e-6F);
  }
}

}  // namespace
}  // namespace conclave
