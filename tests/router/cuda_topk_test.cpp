// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The router on a GPU against the reference on the CPU: the same ids in the same order, weights to f32 rounding, for
// every rule, over rows with ties, infinities and NaN.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "router/run_router.hpp"
#include "support/gpu.hpp"

namespace conclave {
namespace {

using test::routing_problem;

const Entry<Router>& entry_named(const std::vector<Entry<Router>>& list, const std::string& name) {
  for (const auto& entry : list)
    if (entry.name == name) return entry;
  throw std::runtime_error("no router " + name);
}

/// Random rows, among them: few distinct values (ties), infinities, NaN, nothing but NaN, large spreads.
std::vector<float> strange_logits(std::int64_t rows, std::int64_t experts, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0F, 3.0F);
  std::vector<float> values;
  for (std::int64_t m = 0; m < rows; ++m)
    for (std::int64_t e = 0; e < experts; ++e) {
      float x = normal(random);
      const auto roll = random() % 8;
      if (m % 8 == 1) x = std::round(x);
      if (m % 8 == 2 && roll == 0) x = NAN;
      if (m % 8 == 3 && roll == 0) x = -INFINITY;
      if (m % 8 == 4 && roll == 0) x = INFINITY;
      if (m % 8 == 5) x *= 40;
      if (m == 6) x = NAN;
      if (m == 14) x = -INFINITY;
      values.push_back(x);
    }
  return values;
}

std::vector<RoutingConfig> rules() {
  std::vector<RoutingConfig> list;
  for (const RoutingMethod method : all_routing_methods()) {
    if (method == RoutingMethod::custom || method == RoutingMethod::simulated) continue;
    RoutingConfig rule = routing_preset(method);
    rule.hash_table = false;
    list.push_back(rule);
    rule.routed_scaling_factor = 2.5;
    rule.num_fused_shared_experts = 2;
    rule.fused_shared_weight = 0.4;
    list.push_back(rule);
    if (method == RoutingMethod::sparsemixer) continue;
    rule.num_expert_group = 4;
    rule.topk_group = 2;
    for (const GroupScore score : {GroupScore::max, GroupScore::top2_sum}) {
      rule.group_score = score;
      list.push_back(rule);
    }
  }
  return list;
}

class CudaTopkTest : public test::OnGpu {
 protected:
  test::RouterResult route_there(Problem problem, const RouterInput& input, std::int64_t rows) const {
    problem.device.device = stream().device;
    const auto list = builtin_router();
    const Entry<Router>& entry = entry_named(list, "router/cuda_topk");
    EXPECT_TRUE(entry.supports(problem)) << entry.supports(problem).reason();
    const auto router = entry.make({problem, nullptr});
    const std::int64_t slots = problem.moe.num_slots();
    const Tensor ids = poisoned(DType::i32, {rows, slots + 1}), weights = poisoned(DType::f32, {rows, slots + 1});
    Arena arena = Arena::measuring();
    router->route(input, {ids.view().narrow(1, 0, slots), weights.view().narrow(1, 0, slots)}, arena, stream());
    const Tensor ids_here = down(ids), weights_here = down(weights);
    test::RouterResult result;
    for (std::int64_t m = 0; m < rows; ++m) {
      const std::int32_t* row = ids_here.as<std::int32_t>() + m * (slots + 1);
      const float* row_weights = weights_here.as<float>() + m * (slots + 1);
      result.ids.insert(result.ids.end(), row, row + slots);
      result.weights.insert(result.weights.end(), row_weights, row_weights + slots);
      EXPECT_EQ(row[slots], -1) << "wrote behind a row";
      EXPECT_TRUE(std::isnan(row_weights[slots])) << "wrote behind a row";
    }
    return result;
  }

  void expect_same(const Problem& problem, const RouterInput& here, const RouterInput& there, std::int64_t rows) const {
    const auto list = builtin_router();
    const auto expected = test::run_router(entry_named(list, "router/reference_topk"), problem, here, rows);
    const auto got = route_there(problem, there, rows);
    EXPECT_EQ(got.ids, expected.ids);
    for (std::size_t i = 0; i < got.weights.size(); ++i) {
      const float want = expected.weights[i];
      ASSERT_TRUE(got.weights[i] == want || std::fabs(got.weights[i] - want) <= 4e-7F * std::fabs(want) + 1e-30F)
          << "slot " << i << ": " << got.weights[i] << ", expected " << want;
    }
  }
};

TEST_F(CudaTopkTest, EveryRuleChoosesAndWeighsAsTheReference) {
  struct Size {
    std::int64_t experts, top_k;
  };
  for (const Size size : {Size{8, 2}, Size{60, 4}, Size{128, 8}, Size{256, 9}, Size{500, 33}, Size{1024, 8}})
    for (const RoutingConfig& rule : rules()) {
      const Problem problem = routing_problem(size.experts, size.top_k, rule);
      const auto list = builtin_router();
      if (!entry_named(list, "router/reference_topk").supports(problem)) continue;
      SCOPED_TRACE(std::string(name_of(rule.method)) + ", E " + std::to_string(size.experts) + ", groups " +
                   std::to_string(rule.num_expert_group));
      const std::int64_t rows = 45;
      const DType dtype = size.experts == 128 ? DType::bf16 : size.experts == 60 ? DType::f16 : DType::f32;
      const test::Logits logits(strange_logits(rows, size.experts, 7), size.experts, dtype, 3);
      std::vector<float> bias;
      for (std::int64_t e = 0; e < size.experts; ++e) bias.push_back(0.25F * static_cast<float>(e % 7) - 0.5F);
      const Tensor logits_there = up(logits.memory);
      RouterInput here, there;
      here.logits = logits.view;
      there.logits = logits_there.view().narrow(1, 0, size.experts);
      const ConstTensorView bias_view(bias.data(), DType::f32, {size.experts});
      const Tensor bias_there = up(bias_view);
      if (rule.has_bias) {
        here.e_score_correction_bias = bias_view;
        there.e_score_correction_bias = bias_there;
      }
      expect_same(problem, here, there, rows);
    }
}

TEST_F(CudaTopkTest, HashTablesNameTheExperts) {
  RoutingConfig rule = routing_preset(RoutingMethod::deepseek_v4);
  rule.hash_table = true;
  rule.has_bias = false;
  const Problem problem = routing_problem(20, 3, rule);
  // A token that is not in the table, and ids that are no experts, make empty slots.
  const std::vector<std::int32_t> table = {0, 5, 19, 7, 7, 1, -1, 20, 3, 2, 4, 6}, tokens = {3, 0, 2, 1, 4, -5, 3};
  const test::Logits logits(strange_logits(7, 20, 3), 20);
  RouterInput here, there;
  here.logits = logits.view;
  here.hash_table = ConstTensorView(table.data(), DType::i32, {4, 3});
  here.token_ids = ConstTensorView(tokens.data(), DType::i32, {7});
  const Tensor a = up(logits.view), b = up(*here.hash_table), c = up(*here.token_ids);
  there.logits = a;
  there.hash_table = b;
  there.token_ids = c;
  expect_same(problem, here, there, 7);
}

TEST_F(CudaTopkTest, TensorsOnTheHostAreRefused) {
  const Problem problem = routing_problem(8, 2, routing_preset(RoutingMethod::default_));
  const test::Logits logits(std::vector<float>(16, 1.0F), 8);
  RouterInput input;
  input.logits = logits.view;
  EXPECT_THROW(route_there(problem, input, 2), Error);
}

TEST(CudaTopkSupport, DevicesAndMethodsAreRefusedWithReasons) {
  const auto list = builtin_router();
  if (!has_cuda_back_end()) GTEST_SKIP() << "this build has no CUDA back end";
  const Entry<Router>& entry = entry_named(list, "router/cuda_topk");
  Problem problem = routing_problem(8, 2, routing_preset(RoutingMethod::default_));
  EXPECT_THAT(entry.supports(problem).reason(), ::testing::HasSubstr("cpu"));
  problem.device.device = {DeviceType::cuda, 0};
  EXPECT_TRUE(entry.supports(problem));
  EXPECT_FALSE(entry_named(list, "router/cpu_topk").supports(problem));
  problem.moe.num_experts = 1025;
  EXPECT_THAT(entry.supports(problem).reason(), ::testing::HasSubstr("1025"));
  problem.moe.num_experts = 8;
  problem.moe.routing = routing_preset(RoutingMethod::simulated);
  EXPECT_THAT(entry.supports(problem).reason(), ::testing::HasSubstr("simulated"));
}

}  // namespace
}  // namespace conclave
