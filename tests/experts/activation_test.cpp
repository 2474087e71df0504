// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
#include "experts/activation.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "conclave/error.hpp"
#include "support/expert_case.hpp"
#include "support/oracle.hpp"

namespace conclave::experts {
namespace {

float gated(Activation kind, ActivationParams params, float g, float u) {
  return activate(make_activation(kind, params), g, u);
}

TEST(Activation, SiluClampsGateAboveAndUpOnBothSides) {
  const ActivationParams limit{.limit = 10.0};
  EXPECT_NEAR(gated(Activation::silu, limit, 12, 15), 99.9955, 1e-3);
  EXPECT_NEAR(gated(Activation::silu, limit, 12, -15), -99.9955, 1e-3);
  EXPECT_NEAR(gated(Activation::silu, limit, -12, 15), -0.000737, 1e-6);  // The gate has no lower clamp.
  EXPECT_NEAR(gated(Activation::silu, {}, 12, 15), 180.0, 2e-3);
}

TEST(Activation, SwigluOaiHasTheValuesOfGptOss) {
  EXPECT_NEAR(gated(Activation::swigluoai, {}, 10, 10), 55.9996, 1e-3);
  EXPECT_NEAR(gated(Activation::swigluoai, {}, 10, -10), -41.9997, 1e-3);
  EXPECT_NEAR(gated(Activation::swigluoai, {}, -10, 2), -1.2e-6, 1e-7);
  EXPECT_NEAR(gated(Activation::swigluoai, {}, 1, 1), 1.69159, 1e-5);
  EXPECT_EQ(gated(Activation::swigluoai, {}, 0, 5), 0.0f);
}

TEST(Activation, SwigluStepClampsAfterSilu) {
  EXPECT_NEAR(gated(Activation::swiglustep, {}, 12, 15), 49.000, 5e-4);
  EXPECT_NEAR(gated(Activation::silu, {.limit = 7.0}, 12, 15), 48.955, 5e-4);
}

TEST(Activation, UninterleavedTakesAlphaBetaAndALimit) {
  // (min(3, 2)) * sigmoid(1.5 * 2) * (min(5, 2) + 0.5) = 2 * 0.952574 * 2.5
  EXPECT_NEAR(gated(Activation::swigluoai_uninterleave, {.alpha = 1.5, .beta = 0.5, .limit = 2.0}, 3, 5), 4.76287,
              1e-4);
  EXPECT_THROW(make_activation(Activation::swigluoai_uninterleave, {}), Error);
}

TEST(Activation, SituBoundsTheGateAndOnDemandTheUp) {
  // 2 tanh(0.5) sigmoid(1) = 0.6756694; * 3, or * 2 tanh(1.5) = 1.8102965
  EXPECT_NEAR(gated(Activation::situ, {.beta = 2.0}, 1, 3), 2.027008, 1e-5);
  EXPECT_NEAR(gated(Activation::situ, {.beta = 2.0, .linear_beta = 2.0}, 1, 3), 1.223162, 1e-5);
}

TEST(Activation, GeluDiffersFromItsTanhForm) {
  EXPECT_NEAR(gated(Activation::gelu, {}, 1, 2), 1.682689, 1e-5);
  EXPECT_NEAR(gated(Activation::gelu_tanh, {}, 1, 2), 1.682384, 1e-5);
}

TEST(Activation, Relu2SquaresWhatIsPositive) {
  EXPECT_EQ(activate(make_activation(Activation::relu2_no_mul, {}), -1.0f), 0.0f);
  EXPECT_EQ(activate(make_activation(Activation::relu2_no_mul, {}), 3.0f), 9.0f);
  EXPECT_EQ(gated(Activation::relu2, {}, 3, 2), 18.0f);
}

TEST(Activation, EveryFormulaAgreesWithDoubleArithmetic) {
  for (Activation kind : all_activations()) {
    MoeConfig moe;
    moe.activation = kind;
    moe.activation_params = test::typical_params(kind);
    const ActivationFn fn = make_activation(kind, moe.activation_params);
    for (float g = -9.0f; g <= 9.0f; g += 0.37f)
      for (float u = -8.0f; u <= 8.0f; u += 0.73f) {
        const float got = fn.gated ? activate(fn, g, u) : activate(fn, g);
        const double expected = test::oracle_activation(moe, g, u);
        // 1 + erf and 1 + tanh cancel for gates far below zero: an absolute part of one rounding of |g u|.
        ASSERT_NEAR(got, expected, 4e-6 * std::fabs(expected) + 1e-7 * (std::fabs(g * u) + 1.0))
            << name_of(kind) << " g " << g << " u " << u;
      }
  }
}

TEST(Activation, NanStaysAndLargeNegativeGatesVanish) {
  for (Activation kind : all_activations()) {
    const ActivationFn fn = make_activation(kind, test::typical_params(kind));
    const float nan = fn.gated ? activate(fn, NAN, 1.0f) : activate(fn, NAN);
    EXPECT_TRUE(std::isnan(nan)) << name_of(kind);
    if (fn.gated) {
      EXPECT_TRUE(std::isnan(activate(fn, 1.0f, NAN))) << name_of(kind);
    }
    const float small = fn.gated ? activate(fn, -200.0f, 1.0f) : activate(fn, -200.0f);
    EXPECT_NEAR(small, 0.0f, 1e-30) << name_of(kind);
  }
}

/// The same four numbers under each layout: w13 = [1, 2, 3, 4], x = 1.
TEST(ActivationRow, EachLayoutReadsItsOwnHalves) {
  const ActivationFn fn = make_activation(Activation::silu, {});
  const float in[] = {1, 2, 3, 4};
  const auto run = [&](W13Layout layout) {
    std::vector<float> out(2);
    activate_row(fn, layout, in, out.data(), 2);
    return out;
  };
  const std::vector<float> gate_up = run(W13Layout::gate_up);
  EXPECT_NEAR(gate_up[0], 2.1932, 1e-4);
  EXPECT_NEAR(gate_up[1], 7.0464, 1e-4);
  const std::vector<float> up_gate = run(W13Layout::up_gate);
  EXPECT_NEAR(up_gate[0], 2.8577, 1e-4);
  EXPECT_NEAR(up_gate[1], 7.8561, 1e-4);
  const std::vector<float> interleaved = run(W13Layout::interleaved);
  EXPECT_NEAR(interleaved[0], 1.4621, 1e-4);
  EXPECT_NEAR(interleaved[1], 11.4309, 1e-4);
}

TEST(ActivationRow, WithoutAGateEveryColumnIsItself) {
  const ActivationFn fn = make_activation(Activation::relu2_no_mul, {});
  const float in[] = {-1, 3};
  float out[2];
  activate_row(fn, W13Layout::gate_up, in, out, 2);
  EXPECT_EQ(out[0], 0.0f);
  EXPECT_EQ(out[1], 9.0f);
}

}  // namespace
}  // namespace conclave::experts
