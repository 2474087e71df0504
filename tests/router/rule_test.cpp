// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Every scoring, order, bias, group rule, renormalisation and factor against the rule of routing.hpp in double, written
// here once more; and the properties that hold for every method.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>

#include "router/run_router.hpp"

namespace conclave {
namespace {

using test::route_all;
using test::RouterResult;
using test::routing_problem;

std::vector<double> oracle_scores(Scoring scoring, std::vector<double> x) {
  if (scoring == Scoring::softmax) {
    double sum = 0;
    for (double& v : x) sum += v = std::exp(v);
    for (double& v : x) v /= sum;
  }
  if (scoring == Scoring::sigmoid)
    for (double& v : x) v = 1 / (1 + std::exp(-v));
  if (scoring == Scoring::sqrt_softplus)
    for (double& v : x) v = std::sqrt(std::log1p(std::exp(v)));
  return x;
}

/// What the oracle orders by; masked experts are -infinity. `margin` is how far the groups' decision was from a tie.
struct Choice {
  std::vector<double> values;
  double margin = 1;
};

Choice oracle_choice(const MoeConfig& moe, const std::vector<double>& x, const std::vector<float>& bias) {
  const RoutingConfig& r = moe.routing;
  Choice choice{r.score_after_topk ? x : oracle_scores(r.scoring, x)};
  for (std::size_t e = 0; e < bias.size(); ++e) choice.values[e] += static_cast<double>(bias[e]);
  if (r.num_expert_group == 1) return choice;
  const std::size_t size = choice.values.size() / static_cast<std::size_t>(r.num_expert_group);
  std::vector<std::pair<double, std::size_t>> groups;
  for (std::size_t g = 0; g < static_cast<std::size_t>(r.num_expert_group); ++g) {
    std::vector<double> own(choice.values.begin() + static_cast<std::ptrdiff_t>(g * size),
                            choice.values.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
    std::sort(own.rbegin(), own.rend());
    groups.emplace_back(r.group_score == GroupScore::max || size == 1 ? own[0] : own[0] + own[1], g);
  }
  std::sort(groups.rbegin(), groups.rend());
  const auto kept = static_cast<std::size_t>(r.topk_group);
  if (kept < groups.size()) choice.margin = groups[kept - 1].first - groups[kept].first;
  for (std::size_t i = kept; i < groups.size(); ++i)
    std::fill_n(choice.values.begin() + static_cast<std::ptrdiff_t>(groups[i].second * size), size, -INFINITY);
  return choice;
}

std::vector<double> oracle_weights(const MoeConfig& moe, const std::vector<double>& x,
                                   const std::vector<std::int32_t>& ids) {
  const RoutingConfig& r = moe.routing;
  std::vector<double> all = r.score_after_topk ? x : oracle_scores(r.scoring, x), w;
  for (std::int64_t k = 0; k < moe.top_k; ++k)
    w.push_back(all[static_cast<std::size_t>(ids[static_cast<std::size_t>(k)])]);
  if (r.score_after_topk) w = oracle_scores(r.scoring, w);
  const double sum = std::accumulate(w.begin(), w.end(), 0.0);
  for (double& v : w) {
    if (r.renormalize == Renormalize::sum_plus_epsilon) v /= sum + r.epsilon;
    if (r.renormalize == Renormalize::max_epsilon) v /= std::max(sum, r.epsilon);
    if (!moe.routed_scale_on_output) v *= r.routed_scaling_factor;
  }
  w.insert(w.end(), static_cast<std::size_t>(r.num_fused_shared_experts), r.fused_shared_weight);
  return w;
}

std::vector<float> random_values(std::size_t count, unsigned seed, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> v(count);
  for (float& x : v) x = normal(random);
  return v;
}

void expect_matches_oracle(const Problem& p, const std::vector<float>& logits, const std::vector<float>& bias,
                           const RouterResult& got) {
  const std::int64_t experts = p.moe.num_experts, slots = p.moe.num_slots();
  const std::int64_t rows = std::ssize(logits) / experts;
  for (std::int64_t m = 0; m < rows; ++m) {
    const std::vector<double> x(logits.begin() + m * experts, logits.begin() + (m + 1) * experts);
    const Choice choice = oracle_choice(p.moe, x, bias);
    if (choice.margin < 1e-5) continue;  // f32 may rightly keep the other group.
    std::vector<std::int32_t> ids = got.ids_of(m, slots);
    std::vector<double> sorted = choice.values;
    std::sort(sorted.rbegin(), sorted.rend());
    for (std::int64_t k = 0; k < p.moe.top_k; ++k) {
      const std::int32_t id = ids[static_cast<std::size_t>(k)];
      ASSERT_GE(id, 0);
      ASSERT_LT(id, experts);
      ASSERT_NEAR(choice.values[static_cast<std::size_t>(id)], sorted[static_cast<std::size_t>(k)],
                  2e-6 * (1 + std::fabs(sorted[static_cast<std::size_t>(k)])));
    }
    const std::vector<double> expected = oracle_weights(p.moe, x, ids);
    const std::vector<float> weights = got.weights_of(m, slots);
    for (std::size_t k = 0; k < weights.size(); ++k)
      ASSERT_NEAR(static_cast<double>(weights[k]), expected[k], 1e-6 + 1e-5 * std::fabs(expected[k])) << "slot " << k;
    for (std::int64_t s = p.moe.top_k; s < slots; ++s)
      ASSERT_EQ(ids[static_cast<std::size_t>(s)], experts + s - p.moe.top_k);
    ids.resize(static_cast<std::size_t>(p.moe.top_k));
    std::sort(ids.begin(), ids.end());
    ASSERT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end()) << "an expert was chosen twice";
  }
}

struct Shape {
  std::int64_t experts, top_k, groups, topk_group;
};

class RuleTest : public testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, RuleTest,
                         testing::Values(Shape{1, 1, 1, 1}, Shape{5, 2, 1, 1}, Shape{16, 16, 1, 1}, Shape{24, 4, 6, 3},
                                         Shape{128, 8, 1, 1}, Shape{256, 8, 8, 4}, Shape{12, 3, 12, 5},
                                         Shape{300, 45, 1, 1}));

TEST_P(RuleTest, MatchesTheOracleInEveryCombination) {
  const auto [experts, top_k, groups, topk_group] = GetParam();
  const std::int64_t rows = 7;
  const auto logits = random_values(static_cast<std::size_t>(rows * experts), 11, 2.0F);
  const auto bias = random_values(static_cast<std::size_t>(experts), 12, 0.3F);
  using enum Renormalize;
  for (const Scoring scoring : {Scoring::softmax, Scoring::sigmoid, Scoring::sqrt_softplus, Scoring::logits})
    for (const bool after : {false, true})
      for (const bool has_bias : {false, true})
        for (const GroupScore group_score : {GroupScore::max, GroupScore::top2_sum})
          for (const Renormalize renormalize : {none, sum_plus_epsilon, max_epsilon})
            for (const bool scaled : {false, true}) {
              // A sum of raw logits may be near 0, where the quotient has no digits to compare.
              if (scoring == Scoring::logits && renormalize != none) continue;
              RoutingConfig r;
              r.scoring = scoring;
              r.score_after_topk = after;
              r.has_bias = has_bias;
              r.num_expert_group = groups;
              r.topk_group = topk_group;
              r.group_score = group_score;
              r.renormalize = renormalize;
              r.epsilon = scaled ? 0.25 : 1e-20;
              r.routed_scaling_factor = scaled ? 2.5 : 1.0;
              r.num_fused_shared_experts = scaled ? 2 : 0;
              r.fused_shared_weight = 0.75;
              const Problem p = routing_problem(experts, top_k, r);
              const auto given = has_bias ? bias : std::vector<float>();
              const RouterResult got = route_all(p, logits, given);
              expect_matches_oracle(p, logits, given, got);
              if (HasFatalFailure()) {
                FAIL() << name_of(scoring) << " after " << after << " bias " << has_bias << " " << name_of(group_score)
                       << " " << name_of(renormalize) << " scaled " << scaled;
              }
            }
}

/// The methods of the table, with a bias where their preset has one.
class MethodTest : public testing::TestWithParam<RoutingMethod> {
 protected:
  Problem problem(std::int64_t experts, std::int64_t top_k) const {
    return routing_problem(experts, top_k, routing_preset(GetParam()));
  }
  std::vector<float> bias(const Problem& p) const {
    if (!p.moe.routing.has_bias) return {};
    return random_values(static_cast<std::size_t>(p.moe.num_experts), 3, 0.1F);
  }
};
INSTANTIATE_TEST_SUITE_P(Methods, MethodTest,
                         testing::Values(RoutingMethod::default_, RoutingMethod::renormalize,
                                         RoutingMethod::deepseek_v3, RoutingMethod::llama4,
                                         RoutingMethod::renormalize_naive, RoutingMethod::top_k,
                                         RoutingMethod::sigmoid_renorm, RoutingMethod::minimax2, RoutingMethod::sigmoid,
                                         RoutingMethod::topk_sigmoid, RoutingMethod::deepseek_v4,
                                         RoutingMethod::sparsemixer),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

TEST_P(MethodTest, ReadsStridedLogitsOfEveryType) {
  const Problem p = problem(19, 4);
  std::vector<float> logits = random_values(19 * 6, 21, 1.5F);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (float& v : logits) {  // Representable values route alike in every type.
      std::uint16_t bits[2] = {};
      cpu::store_f32(&v, dtype, 1, bits);
      cpu::load_f32(bits, dtype, 1, &v);
    }
    const RouterResult expected = route_all(p, logits, bias(p));
    const RouterResult got = route_all(p, logits, bias(p), dtype, 5);
    EXPECT_EQ(got.ids, expected.ids) << name_of(dtype);
    EXPECT_EQ(got.weights, expected.weights) << name_of(dtype);
  }
}

TEST_P(MethodTest, RowsDoNotDependOnTheirBatchOrTheThreads) {
  const Problem p = problem(160, 6);
  const std::vector<float> logits = random_values(160 * 33, 22, 1.0F);
  const RouterResult all = route_all(p, logits, bias(p));
  for (const std::int64_t m : {0, 1, 16, 32}) {
    const RouterResult one = route_all(p, {logits.begin() + m * 160, logits.begin() + (m + 1) * 160}, bias(p));
    EXPECT_EQ(one.ids, all.ids_of(m, 6));
    EXPECT_EQ(one.weights, all.weights_of(m, 6));
  }
  const auto shifts = bias(p);
  const test::Logits matrix(logits, 160);
  RouterInput input;
  input.logits = matrix.view;
  if (!shifts.empty()) input.e_score_correction_bias = ConstTensorView(shifts.data(), DType::f32, {160});
  for (const int planned : {1, 3})
    for (const int given : {1, 2, 5}) {
      Problem other = p;
      other.device.num_threads = planned;
      const RouterResult got = test::run_router(test::routers_on_cpu().front(), other, input, 33, given);
      EXPECT_EQ(got.ids, all.ids) << planned << " planned, " << given << " given";
      EXPECT_EQ(got.weights, all.weights) << planned << " planned, " << given << " given";
    }
}

TEST_P(MethodTest, IsLinearInTheFactorUnlessTheOutputIsScaled) {
  Problem p = problem(16, 3);
  const std::vector<float> logits = random_values(16 * 5, 23, 1.0F);
  const RouterResult plain = route_all(p, logits, bias(p));
  p.moe.routing.routed_scaling_factor = 2.5;
  const RouterResult scaled = route_all(p, logits, bias(p));
  EXPECT_EQ(scaled.ids, plain.ids);
  for (std::size_t i = 0; i < plain.weights.size(); ++i) EXPECT_EQ(scaled.weights[i], 2.5F * plain.weights[i]);
  p.moe.routed_scale_on_output = true;
  EXPECT_EQ(route_all(p, logits, bias(p)).weights, plain.weights);
}

TEST_P(MethodTest, NoRowsAreLegalWithNullData) {
  const Problem p = problem(8, 2);
  const auto shifts = bias(p);
  RouterInput input;
  input.logits = ConstTensorView(nullptr, DType::f32, {0, 8});
  if (!shifts.empty()) input.e_score_correction_bias = ConstTensorView(shifts.data(), DType::f32, {8});
  const auto executor = make_executor(2);
  for (const Entry<Router>& entry : test::routers_on_cpu()) {
    Arena arena({}, Device{});
    entry.make({p, nullptr})
        ->route(input, {TensorView(nullptr, DType::i32, {0, 2}), TensorView(nullptr, DType::f32, {0, 2})}, arena,
                Stream::cpu(*executor));
  }
}

TEST_P(MethodTest, ATieGoesToTheLowerIndex) {
  Problem p = problem(384, 6);
  if (p.moe.routing.has_bias) p.moe.routing.has_bias = false;
  EXPECT_EQ(route_all(p, std::vector<float>(384, 0.0F)).ids, (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5}));
  // A tie at the k-th place, and -0 equal to 0.
  p = routing_problem(7, 3, p.moe.routing);
  EXPECT_EQ(route_all(p, {0, 1, -0.0F, 2, 0, -1, 0}).ids, (std::vector<std::int32_t>{3, 1, 0}));
  EXPECT_EQ(route_all(p, {-0.0F, 1, 0, 2, 0, -1, 0}).ids, (std::vector<std::int32_t>{3, 1, 0}));
}

TEST_P(MethodTest, NanIsNeverChosenBeforeANumber) {
  const Problem p = problem(6, 2);
  const std::vector<float> shifts = p.moe.routing.has_bias ? std::vector<float>(6, 0.0F) : std::vector<float>();
  const RouterResult half = route_all(p, {NAN, 0, 1, 2, 3, NAN}, shifts);
  EXPECT_EQ(half.ids, (std::vector<std::int32_t>{4, 3}));
  for (const float w : half.weights) EXPECT_TRUE(std::isfinite(w) && w > 0) << w;
  // One number: it comes first, whatever it is, and NaN weighs nothing.
  for (const float number : {-5.0F, -INFINITY}) {
    const RouterResult one = route_all(p, {NAN, NAN, NAN, number, NAN, NAN}, shifts);
    EXPECT_EQ(one.ids, (std::vector<std::int32_t>{3, 0}));
    EXPECT_EQ(one.weights[1], 0.0F);
    EXPECT_TRUE(std::isfinite(one.weights[0]));
  }
  const RouterResult none = route_all(p, std::vector<float>(6, NAN), shifts);
  EXPECT_EQ(none.ids, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(none.weights, (std::vector<float>{0, 0}));
}

TEST_P(MethodTest, InfinitiesGiveDistinctIdsAndNoNan) {
  const Problem p = problem(8, 4);
  const std::vector<float> shifts = p.moe.routing.has_bias ? std::vector<float>(8, 0.0F) : std::vector<float>();
  const std::vector<std::vector<float>> rows = {
      std::vector<float>(8, INFINITY),
      std::vector<float>(8, -INFINITY),
      {0, 1, INFINITY, 2, 3, 4, 5, 6},
      {-INFINITY, 0, -INFINITY, 1, -INFINITY, -INFINITY, -INFINITY, INFINITY}};
  for (const auto& row : rows) {
    RouterResult got = route_all(p, row, shifts);
    for (const float w : got.weights) {
      EXPECT_FALSE(std::isnan(w));
      const bool may_be_infinite = p.moe.routing.renormalize == Renormalize::none &&
                                   p.moe.routing.scoring == Scoring::logits && row.back() != -INFINITY;
      EXPECT_TRUE(std::isfinite(w) || may_be_infinite) << w;
    }
    std::sort(got.ids.begin(), got.ids.end());
    EXPECT_EQ(std::adjacent_find(got.ids.begin(), got.ids.end()), got.ids.end());
    EXPECT_GE(got.ids.front(), 0);
    EXPECT_LT(got.ids.back(), 8);
  }
  EXPECT_EQ(route_all(p, rows[1], shifts).ids, (std::vector<std::int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(route_all(p, rows[2], shifts).ids[0], 2);
}

TEST(GroupsWithNan, ANanIsNoSecondBest) {
  RoutingConfig r = routing_preset(RoutingMethod::deepseek_v3);
  r.has_bias = false;
  r.num_expert_group = 2;
  // 0.73 + 0.007 against 0.55 + 0.55; counting 0.73 twice would win.
  EXPECT_EQ(route_all(routing_problem(8, 2, r), {1, NAN, -5, -5, 0.2F, 0.2F, -5, -5}).ids,
            (std::vector<std::int32_t>{4, 5}));
  // A group of one number loses to any pair, a group of none to everything.
  EXPECT_EQ(route_all(routing_problem(8, 2, r), {9, NAN, NAN, NAN, -9, -9, -9, -9}).ids,
            (std::vector<std::int32_t>{4, 5}));
  EXPECT_EQ(route_all(routing_problem(8, 2, r), {NAN, NAN, NAN, NAN, NAN, NAN, NAN, -9}).ids,
            (std::vector<std::int32_t>{7, 0}))
      << "the only number, then NaN by index, whatever its group";
}

// Two ways of choosing must agree on every mixture of special values; route_all() compares them bit by bit.
TEST(SpecialValues, BothRoutersAgreeOnAnyMixture) {
  const float values[] = {NAN, -NAN, INFINITY, -INFINITY, 0.0F, -0.0F, 1.0F, -1.0F, 100.0F, -100.0F, 1e-40F};
  std::mt19937 random(77);
  for (int round = 0; round < 200; ++round) {
    RoutingConfig r;
    r.scoring = std::array{Scoring::softmax, Scoring::sigmoid, Scoring::sqrt_softplus, Scoring::logits}[random() % 4];
    r.score_after_topk = random() % 2 == 0;
    r.has_bias = random() % 2 == 0;
    r.num_expert_group = std::array{1, 2, 4, 12}[random() % 4];
    r.topk_group = (r.num_expert_group + 1) / 2;
    r.group_score = random() % 2 == 0 ? GroupScore::max : GroupScore::top2_sum;
    r.renormalize = random() % 2 == 0 ? Renormalize::sum_plus_epsilon : Renormalize::none;
    std::vector<float> logits(12 * 4), bias(r.has_bias ? 12 : 0);
    for (float& v : logits) v = values[random() % std::size(values)];
    for (float& v : bias) v = values[random() % std::size(values)];
    const RouterResult got = route_all(routing_problem(12, 5, r), logits, bias);
    for (std::int64_t m = 0; m < 4; ++m) {
      std::vector<std::int32_t> ids = got.ids_of(m, 5);
      std::sort(ids.begin(), ids.end());
      ASSERT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end());
      ASSERT_TRUE(ids.front() >= 0 && ids.back() < 12);
    }
    for (const float w : got.weights) ASSERT_FALSE(std::isnan(w)) << round;
  }
}

}  // namespace
}  // namespace conclave
