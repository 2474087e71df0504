// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
#include "quant/weights_check.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conclave/quantise.hpp"
#include "support/expert_case.hpp"
#include "support/message_of.hpp"

namespace conclave::quant {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using K = QuantKey;

/// Three experts of 256 x 96 and 128 x 96 ... sizes that every group divides.
struct Fixture {
  MoeConfig moe;
  test::ExpertCase plain;
  K key;
  QuantisedExperts owned;
  ExpertWeights weights;

  explicit Fixture(K k, bool split = false) : key(k) {
    moe = test::small_config();
    moe.num_experts = 3;
    moe.hidden_size = 256;
    moe.intermediate_size = 128;
    plain = test::make_expert_case(moe, 1, 11);
    owned = quantise_experts(moe, key, plain.weights, split);
    weights = owned.weights(plain.weights);
  }
  std::string check() const {
    return test::message_of([&] { check_quantised_weights(moe, key, weights); });
  }
};

TEST(WeightsCheck, WhatTheEncoderMakesPasses) {
  for (K key : all_quant_keys()) {
    for (bool split : {false, true}) {
      if (key == K::none || !supports_key(key, QuantRole::weights)) continue;
      EXPECT_EQ(Fixture(key, split).check(), "no error") << name_of(key);
    }
  }
}

TEST(WeightsCheck, TrailingExtentsOfOneMayBeMissing) {
  Fixture f(K::int8_channel);
  f.weights.w13_scale->rank = 2;
  EXPECT_EQ(f.check(), "no error");
  Fixture t(K::fp8_tensor);
  t.weights.w13_scale->rank = t.weights.w2_scale->rank = 1;
  EXPECT_EQ(t.check(), "no error");
}

TEST(WeightsCheck, PlainWeightsAreNotElements) {
  Fixture f(K::fp8_block128);
  f.weights.w13 = f.plain.weights.w13;
  EXPECT_THAT(f.check(), AllOf(HasSubstr("w13: given f32[3, 256, 256]"), HasSubstr("fp8_e4m3 [3, 256, 256]"),
                               HasSubstr("fp8_block128")));
}

TEST(WeightsCheck, MissingExtraAndMisshapenScales) {
  Fixture f(K::fp8_block128);
  f.weights.w2_scale.reset();
  EXPECT_THAT(f.check(), HasSubstr("w2_scale: missing, expected f32 [3, 2, 1]"));
  f = Fixture(K::fp8_block128);
  f.weights.w13_scale->shape[1] = 1;
  EXPECT_THAT(f.check(), AllOf(HasSubstr("w13_scale: given f32[3, 1, 2]"), HasSubstr("expected f32 [3, 2, 2]")));
  f = Fixture(K::fp8_block128);
  f.weights.w13_global_scale = f.weights.w13_scale;
  EXPECT_THAT(f.check(), HasSubstr("w13_global_scale: given f32[3, 2, 2], expected none"));
  f = Fixture(K::nvfp4);
  f.weights.w2_global_scale.reset();
  EXPECT_THAT(f.check(), HasSubstr("w2_global_scale: missing"));
  f = Fixture(K::int4_group32_zp);
  f.weights.w13_zero_point.reset();
  EXPECT_THAT(f.check(), HasSubstr("w13_zero_point: missing, expected u8 [3, 256, 8]"));
  f = Fixture(K::int4_group32);
  f.weights.w13_zero_point = f.weights.w13;
  EXPECT_THAT(f.check(), HasSubstr("w13_zero_point: given"));
}

TEST(WeightsCheck, AScaleOfAnotherTypeIsNotReinterpreted) {
  Fixture f(K::mxfp4);
  const Tensor floats = test::random_tensor(DType::f32, {3, 256, 8}, 1);
  f.weights.w13_scale = floats.view();
  EXPECT_THAT(f.check(), AllOf(HasSubstr("w13_scale: given f32"), HasSubstr("expected e8m0")));
}

TEST(WeightsCheck, TwoTensorWideScalesForGateAndUpOnly) {
  Fixture f(K::nvfp4, true);
  f.weights.w2_global_scale = f.weights.w13_global_scale;
  EXPECT_THAT(f.check(), AllOf(HasSubstr("w2_global_scale: given f32[3, 2, 1]"), HasSubstr("expected f32 [3]")));
}

TEST(WeightsCheck, ScalesThatCannotBeMeantAreNamedWithTheirPlace) {
  Fixture f(K::fp8_block128);
  for (const float bad : {-1.0f, float(NAN), float(INFINITY)}) {
    f.owned.w13_scale->as<float>()[1 * 4 + 1 * 2 + 0] = bad;
    EXPECT_THAT(f.check(), HasSubstr("w13_scale[1, 1, 0]: given"));
  }
  Fixture mx(K::mxfp8);
  mx.owned.w2_scale->as<std::uint8_t>()[5] = 255;
  EXPECT_THAT(mx.check(), AllOf(HasSubstr("w2_scale[0, 1, 1]"), HasSubstr("nan")));
  for (const int bad : {0x7F, 0xFF, 0x81}) {
    Fixture nv(K::nvfp4);
    nv.owned.w13_scale->as<std::uint8_t>()[16] = static_cast<std::uint8_t>(bad);
    EXPECT_THAT(nv.check(), HasSubstr("w13_scale[0, 1, 0]")) << bad;
  }
  Fixture zp(K::int4_group64_zp);
  zp.owned.w13_zero_point->as<std::uint8_t>()[3] = 16;
  EXPECT_THAT(zp.check(), HasSubstr("w13_zero_point[0, 0, 3]: given 16, expected 0 to 15"));
}

TEST(WeightsCheck, KeysAndGroupsThatDoNotFit) {
  Fixture f(K::fp8_channel);
  EXPECT_THAT(test::message_of([&] { check_quantised_weights(f.moe, K::fp8_token, f.weights); }),
              HasSubstr("fp8_token, which is a format of activations"));
  EXPECT_THAT(test::message_of([&] { check_quantised_weights(f.moe, static_cast<K>(50), f.weights); }),
              HasSubstr("50"));
  f.moe.hidden_size = 250;
  EXPECT_THAT(test::message_of([&] { check_quantised_weights(f.moe, K::mxfp4, f.weights); }),
              AllOf(HasSubstr("mxfp4"), HasSubstr("250")));
}

TEST(WeightsCheck, ScalesOfActivations) {
  const Tensor one = test::tensor_of(DType::f32, {1}, {0.5});
  const Tensor three = test::tensor_of(DType::f32, {3}, {0.5, 1, 2});
  const Tensor four = test::tensor_of(DType::f32, {4}, {0.5, 1, 2, 3});
  Fixture f(K::fp8_tensor);
  const auto message = [&](K key, const Tensor* a1, const Tensor* a2) {
    ExpertWeights w = f.weights;
    if (a1) w.a1_scale = a1->view();
    if (a2) w.a2_scale = a2->view();
    return test::message_of([&] { check_activation_scales(key, w); });
  };
  EXPECT_EQ(message(K::fp8_tensor, &one, &three), "no error");
  EXPECT_EQ(message(K::fp8_token, nullptr, nullptr), "no error");
  EXPECT_EQ(message(K::none, nullptr, nullptr), "no error");
  EXPECT_THAT(message(K::fp8_tensor, &one, nullptr), HasSubstr("a2_scale: missing"));
  EXPECT_THAT(message(K::fp8_token, &one, nullptr), HasSubstr("a1_scale: given f32[1], expected none"));
  EXPECT_THAT(message(K::nvfp4, &four, &one), AllOf(HasSubstr("f32[4]"), HasSubstr("3 local experts")));
  test::set(three, {2}, 0.0);
  EXPECT_THAT(message(K::int8_tensor, &one, &three),
              HasSubstr("a2_scale[2]: given 0, expected a finite scale above 0"));
}

}  // namespace
}  // namespace conclave::quant
