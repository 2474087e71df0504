// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The table of named shapes: every entry is a legal configuration, and the published sizes of some.
#include "cli/shapes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/parse.hpp"
#include "conclave/error.hpp"

namespace conclave::cli {
namespace {

TEST(Shapes, EveryNameIsLegal) {
  std::string names = shape_names();
  std::int64_t count = 0;
  for (const std::string& name : split(names, ',')) {
    const std::string trimmed = name.substr(name.find_first_not_of(' '));
    EXPECT_NO_THROW(validate(config_of_shape(trimmed))) << trimmed;
    ++count;
  }
  EXPECT_GE(count, 20);
}

TEST(Shapes, PublishedFacts) {
  const MoeConfig deepseek = config_of_shape("deepseek-v3");
  EXPECT_EQ(deepseek.num_experts, 256);
  EXPECT_EQ(deepseek.routing.num_expert_group, 8);
  EXPECT_EQ(deepseek.routing.topk_group, 4);
  EXPECT_EQ(deepseek.routing.routed_scaling_factor, 2.5);
  EXPECT_EQ(deepseek.shared.intermediate_size, 2048);
  const MoeConfig gpt_oss = config_of_shape("gpt-oss-120b");
  EXPECT_EQ(gpt_oss.activation, Activation::swigluoai);
  EXPECT_EQ(gpt_oss.w13_layout, W13Layout::interleaved);
  EXPECT_TRUE(gpt_oss.has_w13_bias && gpt_oss.has_w2_bias);
  EXPECT_TRUE(config_of_shape("llama4-scout").apply_router_weight_on_input);
  EXPECT_EQ(config_of_shape("longcat-flash").num_weight_experts(), 512);
  EXPECT_FALSE(is_gated(config_of_shape("nemotron-3-nano").activation));
}

TEST(Shapes, FourNumbers) {
  const MoeConfig c = config_of_shape("9,3,40,24");
  EXPECT_EQ(c.num_experts, 9);
  EXPECT_EQ(c.top_k, 3);
  EXPECT_EQ(c.hidden_size, 40);
  EXPECT_EQ(c.intermediate_size, 24);
}

TEST(Shapes, RefusesOthers) {
  for (const char* text : {"mixtrall", "", "8,2,40", "8,2,40,24,5", "8,2,x,24"})
    EXPECT_THROW(config_of_shape(text), Error) << text;
  try {
    config_of_shape("mixtrall");
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("mixtrall"));
    EXPECT_THAT(error.what(), testing::HasSubstr("qwen3-30b"));
  }
}

}  // namespace
}  // namespace conclave::cli
