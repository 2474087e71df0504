// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Texts of options: what is accepted, and that the rest is refused with the text in the message.
#include "cli/parse.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conclave/error.hpp"

namespace conclave::cli {
namespace {

using testing::ElementsAre;

TEST(Parse, Counts) {
  EXPECT_THAT(parse_counts("--x", "1,8,512"), ElementsAre(1, 8, 512));
  for (const char* text : {"", "1,", ",1", "1;2", "-1", "1e3", "0x10", "99999999999999999999", " 1"})
    EXPECT_THROW(parse_counts("--x", text), Error) << text;
}

TEST(Parse, Dtype) {
  EXPECT_EQ(parse_dtype("--dtype", "f16"), DType::f16);
  for (const char* text : {"", "fp16", "i32", "fp8_e4m3"}) EXPECT_THROW(parse_dtype("--dtype", text), Error) << text;
}

TEST(Parse, ActivationWithConstants) {
  MoeConfig c;
  c.w13_layout = W13Layout::interleaved;
  parse_activation("swigluoai:limit=5,alpha=1.5", c);
  EXPECT_EQ(c.activation, Activation::swigluoai);
  EXPECT_EQ(c.activation_params.limit, 5.0);
  EXPECT_EQ(c.activation_params.alpha, 1.5);
  EXPECT_EQ(c.w13_layout, W13Layout::interleaved);
  parse_activation("relu2_no_mul", c);
  EXPECT_EQ(c.activation_params, ActivationParams());
  EXPECT_EQ(c.w13_layout, W13Layout::gate_up) << "there is no gate to interleave";
  for (const char* text : {"swish", "silu:limit", "silu:limit=x", "silu:depth=1"})
    EXPECT_THROW(parse_activation(text, c), Error) << text;
}

TEST(Parse, PartNamesWithAndWithoutTheirStage) {
  PartList<Router> list;
  list.add_last({"router/one", {}, false, {}, {}});
  EXPECT_EQ(part_name("--router", list, "one"), "router/one");
  EXPECT_EQ(part_name("--router", list, "router/one"), "router/one");
  try {
    part_name("--router", list, "two");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("\"two\""));
    EXPECT_THAT(error.what(), testing::HasSubstr("router/one"));
  }
}

}  // namespace
}  // namespace conclave::cli
