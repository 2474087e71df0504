// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Random routing: repeatable, a function of (seed, step, row) alone, and distributed as its name says.
#include "router/simulated.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "router/run_router.hpp"

namespace conclave {
namespace {

using test::RouterResult;

constexpr std::int64_t kExperts = 16, kPicks = 4, kRows = 4000;

Problem simulated(SimulatedRouting mode, std::uint64_t seed = 1, double exponent = 1.0) {
  RoutingConfig r = routing_preset(RoutingMethod::simulated);
  r.simulated = mode;
  r.seed = seed;
  r.zipf_exponent = exponent;
  return test::routing_problem(kExperts, kPicks, r);
}

RouterResult draw(const Problem& p, std::uint64_t step = 0, std::int64_t rows = kRows) {
  RouterInput input;
  input.step = step;
  return test::route_all(p, input, rows);
}

std::vector<double> frequencies(const RouterResult& r) {
  std::vector<double> f(kExperts, 0.0);
  for (const std::int32_t id : r.ids) f.at(static_cast<std::size_t>(id)) += 1.0 / static_cast<double>(r.ids.size());
  return f;
}

bool has_repetition(const RouterResult& r) {
  for (std::int64_t m = 0; m < std::ssize(r.ids) / kPicks; ++m) {
    std::vector<std::int32_t> ids = r.ids_of(m, kPicks);
    std::sort(ids.begin(), ids.end());
    if (std::adjacent_find(ids.begin(), ids.end()) != ids.end()) return true;
  }
  return false;
}

class SimulatedTest : public testing::TestWithParam<SimulatedRouting> {};
INSTANTIATE_TEST_SUITE_P(Modes, SimulatedTest,
                         testing::Values(SimulatedRouting::uniform_random, SimulatedRouting::normal_routing,
                                         SimulatedRouting::uniform, SimulatedRouting::zipf),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

TEST_P(SimulatedTest, DependsOnSeedStepAndRowAndNothingElse) {
  const RouterResult all = draw(simulated(GetParam()), 5, 64);
  EXPECT_EQ(draw(simulated(GetParam()), 5, 64).ids, all.ids);
  EXPECT_EQ(draw(simulated(GetParam()), 5, 3).ids, (std::vector<std::int32_t>{all.ids.begin(), all.ids.begin() + 12}));
  EXPECT_NE(draw(simulated(GetParam()), 6, 64).ids, all.ids);
  EXPECT_NE(draw(simulated(GetParam(), 2), 5, 64).ids, all.ids);
  EXPECT_NE(all.ids_of(0, kPicks), all.ids_of(1, kPicks));
  const test::Logits logits(std::vector<float>(64 * kExperts, NAN), kExperts);
  RouterInput input;
  input.logits = logits.view;
  input.step = 5;
  EXPECT_EQ(test::route_all(simulated(GetParam()), input, 64).ids, all.ids) << "logits are not read";
}

TEST_P(SimulatedTest, WeightsAreScaledLikeAnyOthers) {
  Problem p = simulated(GetParam());
  const RouterResult plain = draw(p, 0, 50);
  p.moe.routing.routed_scaling_factor = 2;
  const RouterResult scaled = draw(p, 0, 50);
  for (std::size_t i = 0; i < plain.weights.size(); ++i) EXPECT_EQ(scaled.weights[i], 2 * plain.weights[i]);
}

// A frequency over 16000 draws has a standard deviation under 0.004.
TEST(Simulated, UniformModesAreUniform) {
  const RouterResult with = draw(simulated(SimulatedRouting::uniform_random));
  const RouterResult without = draw(simulated(SimulatedRouting::uniform));
  for (const double f : frequencies(with)) EXPECT_NEAR(f, 1.0 / kExperts, 0.015);
  for (const double f : frequencies(without)) EXPECT_NEAR(f, 1.0 / kExperts, 0.015);
  EXPECT_TRUE(has_repetition(with));
  EXPECT_FALSE(has_repetition(without));
  for (const float w : with.weights) ASSERT_EQ(w, 1.0F);
  for (const float w : without.weights) ASSERT_EQ(w, 0.25F);
}

TEST(Simulated, NormalIsHotInTheMiddleWithWeightsThatSumToOne) {
  const RouterResult got = draw(simulated(SimulatedRouting::normal_routing));
  const std::vector<double> f = frequencies(got);
  // P(7/16 < sigmoid(N) < 1/2) = Phi(0) - Phi(log(7/9)) = 0.0992; P(sigmoid(N) < 1/16) = Phi(-2.708) = 0.0034.
  EXPECT_NEAR(f[7], 0.0992, 0.015);
  EXPECT_NEAR(f[8], 0.0992, 0.015);
  EXPECT_NEAR(f[0], 0.0034, 0.003);
  for (std::int64_t m = 0; m < kRows; ++m) {
    const std::vector<float> w = got.weights_of(m, kPicks);
    ASSERT_NEAR(std::accumulate(w.begin(), w.end(), 0.0F), 1.0F, 1e-5F);
    ASSERT_GE(*std::min_element(w.begin(), w.end()), 0.0F);
  }
}

TEST(Simulated, ZipfFollowsItsExponent) {
  EXPECT_FALSE(has_repetition(draw(simulated(SimulatedRouting::zipf))));
  for (const double exponent : {0.0, 1.0, 1.5}) {
    Problem p = simulated(SimulatedRouting::zipf, 1, exponent);
    p.moe.top_k = 1;
    const std::vector<double> f = frequencies(draw(p, 0, 4 * kRows));
    double sum = 0;
    for (std::int64_t e = 0; e < kExperts; ++e) sum += std::pow(static_cast<double>(e + 1), -exponent);
    for (std::int64_t e = 0; e < kExperts; ++e)
      EXPECT_NEAR(f[static_cast<std::size_t>(e)], std::pow(static_cast<double>(e + 1), -exponent) / sum, 0.02) << e;
  }
}

TEST(Simulated, EveryExpertCanBePickedAtOnce) {
  for (const SimulatedRouting mode : {SimulatedRouting::uniform, SimulatedRouting::zipf}) {
    Problem p = simulated(mode);
    p.moe.top_k = kExperts;
    std::vector<std::int32_t> ids = draw(p, 0, 1).ids, all(kExperts);
    std::iota(all.begin(), all.end(), 0);
    std::sort(ids.begin(), ids.end());
    EXPECT_EQ(ids, all);
  }
}

}  // namespace
}  // namespace conclave
