// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Rules of MoeConfig, each with its message; the flattening of parallel dimensions.
#include "conclave/config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "conclave/error.hpp"

namespace conclave {
namespace {

using ::testing::HasSubstr;

MoeConfig small() {
  MoeConfig c;
  c.num_experts = 8;
  c.top_k = 2;
  c.hidden_size = 40;
  c.intermediate_size = 24;
  return c;
}

TEST(MoeConfig, ValidIsAccepted) {
  EXPECT_NO_THROW(validate(small()));
}

TEST(MoeConfig, EachRuleNamesFieldAndValue) {
  const std::vector<std::pair<std::function<void(MoeConfig&)>, const char*>> broken{
      {[](MoeConfig& c) { c.num_experts = 0; }, "num_experts: given 0"},
      {[](MoeConfig& c) { c.top_k = 9; }, "top_k: given 9, expected 1 to num_experts 8"},
      {[](MoeConfig& c) { c.top_k = 0; }, "top_k: given 0"},
      {[](MoeConfig& c) { c.hidden_size = -3; }, "hidden_size: given -3"},
      {[](MoeConfig& c) { c.zero_experts = 8; }, "zero_experts: given 8"},
      {[](MoeConfig& c) { c.dtype = DType::i8; }, "dtype: given i8"},
      {[](MoeConfig& c) { c.apply_router_weight_on_input = true; }, "apply_router_weight_on_input: given with 2 slots"},
      {[](MoeConfig& c) { c.routing.num_expert_group = 3; }, "num_expert_group: given 3, expected a divisor"},
      {[](MoeConfig& c) { c.routing.topk_group = 2; }, "topk_group: given 2"},
      {[](MoeConfig& c) { c.shared.sigmoid_gate = true; }, "shared.sigmoid_gate"},
      {[](MoeConfig& c) { c.in_place = true, c.shared.intermediate_size = 5; }, "in_place"},
      {[](MoeConfig& c) { c.activation = Activation::relu2_no_mul, c.w13_layout = W13Layout::interleaved; },
       "w13_layout: given interleaved for relu2_no_mul"},
  };
  for (const auto& [edit, text] : broken) {
    MoeConfig c = small();
    edit(c);
    try {
      validate(c);
      ADD_FAILURE() << "accepted; expected: " << text;
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr(text));
    }
  }
}

TEST(ParallelConfig, FlattensAsTheReference) {
  const ParallelConfig dense = make_parallel(2, 1, 1, 0, 2, 1, 1, false, All2All::none);
  EXPECT_EQ(dense.tp_size, 4);
  EXPECT_EQ(dense.tp_rank, 3);
  EXPECT_EQ(dense.ep_size, 1);
  const ParallelConfig expert = make_parallel(2, 0, 3, 2, 2, 1, 1, true, All2All::all_to_all);
  EXPECT_EQ(expert.tp_size, 1);
  EXPECT_EQ(expert.ep_size, 12);
  EXPECT_EQ(expert.ep_rank, 1 * 6 + 2 * 2 + 0);
  EXPECT_TRUE(expert.use_all2all());
  EXPECT_FALSE(make_parallel(1, 0, 1, 0, 1, 0, 1, true, All2All::none).use_ep);
  EXPECT_FALSE(make_parallel(4, 0, 1, 0, 1, 0, 1, true, All2All::none).use_all2all());
  EXPECT_THROW(make_parallel(2, 2, 1, 0, 1, 0, 1, false, All2All::none), Error);
  EXPECT_THROW(make_parallel(0, 0, 1, 0, 1, 0, 1, false, All2All::none), Error);
}

}  // namespace
}  // namespace conclave
