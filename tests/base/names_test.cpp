// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Every enum value has a name that leads back to it; an unknown name lists the legal ones; constants of activations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conclave/activation.hpp"
#include "conclave/error.hpp"
#include "conclave/quant.hpp"
#include "conclave/routing.hpp"

namespace conclave {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Names, LeadBack) {
  for (Activation a : all_activations()) EXPECT_EQ(activation_from_name(name_of(a)), a);
  for (RoutingMethod m : all_routing_methods()) EXPECT_EQ(routing_method_from_name(name_of(m)), m);
  for (QuantKey k : all_quant_keys()) EXPECT_EQ(quant_key_from_name(name_of(k)), k);
  EXPECT_EQ(activation_from_name("gelu_pytorch_tanh"), Activation::gelu_tanh);
}

TEST(Names, UnknownOnesListTheLegalOnes) {
  EXPECT_THAT(message_of([] { activation_from_name("swish"); }),
              AllOf(HasSubstr("\"swish\""), HasSubstr("silu, gelu"), HasSubstr("relu2_no_mul")));
  EXPECT_THAT(message_of([] { quant_key_from_name("fp8"); }), HasSubstr("fp8_block128"));
  EXPECT_THAT(message_of([] { routing_method_from_name("7"); }), HasSubstr("minimax2"));
}

TEST(Activation, GatedAndWithoutMul) {
  EXPECT_TRUE(is_gated(Activation::situ));
  EXPECT_FALSE(is_gated(Activation::silu_no_mul));
  EXPECT_EQ(without_mul(Activation::relu2), Activation::relu2_no_mul);
  EXPECT_EQ(without_mul(Activation::swigluoai), Activation::swigluoai);
  EXPECT_EQ(w13_rows(true, 7), 14);
  EXPECT_EQ(w13_rows(false, 7), 7);
}

TEST(Activation, ResolveFillsDefaultsAndRefusesTheRest) {
  const ActivationParams oai = resolve(Activation::swigluoai, {});
  EXPECT_EQ(oai.alpha, 1.702);
  EXPECT_EQ(oai.limit, 7.0);
  ActivationParams other;
  other.limit = 10.0;
  EXPECT_EQ(resolve(Activation::silu, other).limit, 10.0);
  EXPECT_EQ(resolve(Activation::silu, {}).limit, std::nullopt);
  EXPECT_THAT(message_of([] { resolve(Activation::swigluoai_uninterleave, {}); }), HasSubstr("limit"));
  EXPECT_THAT(message_of([&] { resolve(Activation::gelu, other); }), HasSubstr("no constant limit (given 10)"));
  EXPECT_THAT(message_of([] { resolve(Activation::situ, {}); }), HasSubstr("beta"));
}

TEST(Routing, MethodOfFlags) {
  using enum RoutingMethod;
  EXPECT_EQ(routing_method_of(Scoring::softmax, true, false, false, 1), renormalize_naive);
  EXPECT_EQ(routing_method_of(Scoring::sigmoid, true, true, true, 2.5), deepseek_v3);
  EXPECT_EQ(routing_method_of(Scoring::sigmoid, true, false, true, 1), minimax2);
  EXPECT_EQ(routing_method_of(Scoring::sigmoid, true, false, true, 2), std::nullopt);
  EXPECT_EQ(routing_method_of(Scoring::sqrt_softplus, false, false, true, 1), std::nullopt);
}

TEST(Quant, BytesCountElementsScalesAndZeroPoints) {
  EXPECT_EQ(weight_bytes(QuantKey::none, DType::bf16, 3, 5), 30);
  EXPECT_EQ(weight_bytes(QuantKey::fp8_block128, DType::bf16, 130, 257), 130 * 257 + 2 * 3 * 4);
  EXPECT_EQ(weight_bytes(QuantKey::mxfp4, DType::bf16, 2, 64), 64 + 4);
  EXPECT_EQ(weight_bytes(QuantKey::nvfp4, DType::bf16, 2, 64), 64 + 8 + 4);
  EXPECT_EQ(weight_bytes(QuantKey::int4_group32_zp, DType::bf16, 2, 64), 64 + 16 + 2);
  EXPECT_EQ(describe(QuantKey::nvfp4), "fp4_e2m1,scale(fp8_e4m3,static,1x16),scale2(f32,static,tensor),symmetric");
}

}  // namespace
}  // namespace conclave
