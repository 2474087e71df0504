// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Hash tables, custom functions, and what route() refuses.
#include "router/row_router.hpp"

#include <gtest/gtest.h>

#include <string>

#include "conclave/error.hpp"
#include "router/run_router.hpp"

namespace conclave {
namespace {

using test::route_all;
using test::RouterResult;
using test::routing_problem;
using Ids = std::vector<std::int32_t>;

class HashTest : public testing::Test {
 protected:
  HashTest() {
    RoutingConfig r = routing_preset(RoutingMethod::deepseek_v4);
    r.hash_table = true;
    r.has_bias = false;
    problem_ = routing_problem(5, 2, r);
    input_.logits = logits_.view;
    input_.hash_table = ConstTensorView(table_.data(), DType::i32, {3, 2});
    input_.token_ids = ConstTensorView(tokens_.data(), DType::i64, {4});
  }
  Problem problem_;
  test::Logits logits_{{0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 4, 3, 2, 1, 0, 0, 0, 0, 0, 0}, 5};
  Ids table_{0, 3, 4, 1, 2, 2};
  std::vector<std::int64_t> tokens_{1, 0, 2, 1};
  RouterInput input_;
};

TEST_F(HashTest, TakesIdsFromTheTableAndWeightsFromTheScores) {
  const RouterResult got = route_all(problem_, input_, 4);
  EXPECT_EQ(got.ids, (Ids{4, 1, 0, 3, 2, 2, 4, 1}));
  const auto r = [](double x) { return std::sqrt(std::log1p(std::exp(x))); };
  EXPECT_NEAR(got.weights[0], r(4) / (r(4) + r(1)), 1e-6);
  EXPECT_NEAR(got.weights[3], r(3) / (r(0) + r(3)), 1e-6);
  EXPECT_FLOAT_EQ(got.weights[4], 0.5F) << "a duplicate counts twice";
  const Ids narrow{1, 0, 2, 1};
  input_.token_ids = ConstTensorView(narrow.data(), DType::i32, {4});
  EXPECT_EQ(route_all(problem_, input_, 4).ids, got.ids);
}

TEST_F(HashTest, WhatTheTableDoesNotKnowIsAnEmptySlotOrAnErrorIfChecked) {
  tokens_ = {3, -1, 2, 1};
  table_ = {0, 3, 4, 5, -7, 2};
  const RouterResult got = route_all(problem_, input_, 4);
  EXPECT_EQ(got.ids, (Ids{-1, -1, -1, -1, -1, 2, 4, -1}));
  EXPECT_EQ(got.weights[0], 0.0F);
  EXPECT_EQ(got.weights[4], 0.0F);
  EXPECT_FLOAT_EQ(got.weights[5], 1.0F);
  problem_.moe.checked = true;
  const auto executor = make_executor(2);
  for (const Entry<Router>& entry : test::routers_on_cpu()) {
    try {
      test::run_once(*entry.make({problem_, nullptr}), problem_, input_, 4, *executor);
      FAIL() << "accepted";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("token_ids[0]: given 3"), std::string::npos) << e.what();
    }
  }
}

TEST(CustomRouting, FillsIdsAndWeightsThatAreThenRenormalisedAndScaled) {
  RoutingConfig r = routing_preset(RoutingMethod::custom);
  r.renormalize = Renormalize::sum_plus_epsilon;
  r.routed_scaling_factor = 3;
  r.num_fused_shared_experts = 1;
  const Problem p = routing_problem(9, 2, r);
  const CustomRouting custom = [](const RouterInput& input, const Routing& out) {
    for (std::int64_t m = 0; m < out.topk_ids.size(0); ++m)
      for (std::int64_t k = 0; k < out.topk_ids.size(1); ++k) {
        out.topk_ids.at(m).as<std::int32_t>()[k] = static_cast<std::int32_t>(m + 4 * k);
        out.topk_weights.at(m).as<float>()[k] = input.hidden_states->at(m).as<float>()[0] * static_cast<float>(1 + k);
      }
  };
  const std::vector<float> hidden{1, 7, 2, 7, 3, 7};
  RouterInput input;
  input.hidden_states = ConstTensorView(hidden.data(), DType::f32, {3, 2});
  input.custom = &custom;
  const RouterResult got = route_all(p, input, 3);
  EXPECT_EQ(got.ids, (Ids{0, 4, 9, 1, 5, 9, 2, 6, 9}));
  EXPECT_EQ(got.weights, (std::vector<float>{1, 2, 1, 1, 2, 1, 1, 2, 1}));
}

TEST(RouteRefuses, WhatBreaksTheContractNamingIt) {
  RoutingConfig biased = routing_preset(RoutingMethod::minimax2);
  const Problem plain = routing_problem(8, 2, routing_preset(RoutingMethod::default_));
  const Problem with_bias = routing_problem(8, 2, biased);
  const Problem custom = routing_problem(8, 2, routing_preset(RoutingMethod::custom));
  const test::Logits logits(std::vector<float>(24, 0.0F), 8);
  const std::vector<float> bias(8, 0.0F);
  const auto executor = make_inline_executor();
  const auto message = [&](const Problem& p, const RouterInput& input, std::int64_t rows) {
    try {
      test::run_once(*test::routers_on_cpu().front().make({p, nullptr}), p, input, rows, *executor);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::invalid_argument);
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  const auto contains = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  RouterInput input;
  input.logits = logits.view;
  EXPECT_EQ(message(plain, input, 3), "accepted");
  contains(message(plain, input, 4), "expected [4, 8]");
  contains(message(with_bias, input, 3), "e_score_correction_bias: missing");
  contains(message(custom, input, 3), "custom: missing");
  input.e_score_correction_bias = ConstTensorView(bias.data(), DType::f32, {8});
  EXPECT_EQ(message(with_bias, input, 3), "accepted");
  contains(message(plain, input, 3), "e_score_correction_bias: given");
  input.e_score_correction_bias = ConstTensorView(bias.data(), DType::f32, {7});
  contains(message(with_bias, input, 3), "f32[7]");
  input.e_score_correction_bias.reset();
  input.logits.dtype = DType::i32;
  contains(message(plain, input, 3), "i32[3, 8]");
  input.logits = logits.view;
  std::swap(input.logits.strides[0], input.logits.strides[1]);
  contains(message(plain, input, 3), "contiguous");
}

}  // namespace
}  // namespace conclave
