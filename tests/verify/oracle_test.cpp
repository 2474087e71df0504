// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The oracle on values worked out by hand: it judges everything else, so something else must judge it.
#include "verify/oracle.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "verify/oracle_routing.hpp"

namespace conclave::verify_detail {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double act(Activation a, const ActivationParams& params, double gate, double up) {
  return oracle_activation(a, params, gate, up);
}

TEST(OracleActivation, ClampsOnTheRightSide) {
  const ActivationParams ten{std::nullopt, std::nullopt, 10.0, std::nullopt};
  EXPECT_NEAR(act(Activation::silu, {}, 12, 15), 179.9989, 1e-3);
  EXPECT_NEAR(act(Activation::silu, ten, 12, 15), 99.9955, 1e-4);
  EXPECT_NEAR(act(Activation::silu, ten, 12, -15), -99.9955, 1e-4);
  EXPECT_NEAR(act(Activation::silu, ten, -12, 15), -0.000737301, 1e-9);
  EXPECT_NEAR(act(Activation::swiglustep, {}, 12, 15), 49.0, 1e-9);
  const ActivationParams seven{std::nullopt, std::nullopt, 7.0, std::nullopt};
  EXPECT_NEAR(act(Activation::silu, seven, 12, 15), 48.9554, 1e-4);
}

TEST(OracleActivation, HasTheConstantsOfGptOss) {
  EXPECT_NEAR(act(Activation::swigluoai, {}, 10, 10), 55.9996, 1e-4);
  EXPECT_NEAR(act(Activation::swigluoai, {}, 10, -10), -41.9997, 1e-4);
  EXPECT_NEAR(act(Activation::swigluoai, {}, -10, 2), -1.2174e-6, 1e-9);
  EXPECT_NEAR(act(Activation::swigluoai, {}, 1, 1), 1.69159, 1e-5);
  EXPECT_EQ(act(Activation::swigluoai, {}, 0, 5), 0);
}

TEST(OracleActivation, HasTheOtherFormulas) {
  EXPECT_NEAR(act(Activation::gelu, {}, 1, 2), 2 * 0.8413447461, 1e-9);
  EXPECT_NEAR(act(Activation::gelu_tanh, {}, 1, 2), 2 * 0.8411919906, 1e-9);
  EXPECT_EQ(act(Activation::relu2, {}, 3, 2), 18);
  EXPECT_EQ(act(Activation::relu2_no_mul, {}, -1, 5), 0);
  EXPECT_NEAR(act(Activation::silu_no_mul, {}, 1, 5), 0.7310585786, 1e-9);
  const ActivationParams situ{std::nullopt, 2.0, std::nullopt, 3.0};
  EXPECT_NEAR(act(Activation::situ, situ, 1, 1), 2 * std::tanh(0.5) * 0.7310585786 * 3 * std::tanh(1.0 / 3), 1e-9);
}

TEST(OracleExpert, TakesTheRowsInTheOrderOfTheTag) {
  OracleExpert expert;
  expert.hidden_size = 1;
  expert.intermediate_size = 2;
  expert.w13 = {1, 2, 3, 4};
  expert.w2 = {1, 10};
  MoeConfig moe;
  moe.w13_layout = W13Layout::gate_up;
  EXPECT_NEAR(expert.apply(moe, {1})[0], 2.19318 + 10 * 7.04638, 1e-3);
  moe.w13_layout = W13Layout::up_gate;
  EXPECT_NEAR(expert.apply(moe, {1})[0], 2.85772 + 10 * 7.85611, 1e-3);
  moe.w13_layout = W13Layout::interleaved;
  EXPECT_NEAR(expert.apply(moe, {1})[0], 1.46212 + 10 * 11.43089, 1e-3);
  expert.w13_bias = {0, 0, 0, 1};
  expert.w2_bias = {0.5};
  EXPECT_NEAR(expert.apply(moe, {1})[0], 1.46212 + 10 * 2.857722 * 5 + 0.5, 1e-3);
}

TEST(OracleMoe, SumsDuplicatesSkipsZeroWeightsAndLeavesEmptyRowsZero) {
  MoeConfig moe;
  moe.num_experts = 3;
  moe.activation = Activation::relu2_no_mul;
  OracleExpert one;
  one.hidden_size = one.intermediate_size = 1;
  one.w13 = {1};
  one.w2 = {1};
  OracleExpert broken = one;
  broken.w2 = {kNan};
  const float x[] = {2, 3, 4};
  const ConstTensorView hidden(x, DType::f32, {3, 1});
  OracleRouting routing{2, {0, 0, 0, 1, -1, 7}, {0.25, 0.5, 1.0, 0.0, 1.0, 1.0}};
  const OracleOutput output = oracle_moe(moe, hidden, routing, {one, broken, one}, std::nullopt);
  EXPECT_EQ(output.values, (std::vector<double>{3, 9, 0}));
  EXPECT_EQ(output.row_has_local_expert, (std::vector<bool>{true, true, false}));
  const std::int32_t map[] = {-1, -1, 0};
  const ConstTensorView map_view(map, DType::i32, {3});
  const OracleOutput remote = oracle_moe(moe, hidden, routing, {one}, map_view);
  EXPECT_EQ(remote.values, (std::vector<double>{0, 0, 0}));
  moe.apply_router_weight_on_input = true;
  const OracleRouting half{1, {0, 0, 0}, {0.5, 0.5, 0.5}};
  EXPECT_EQ(oracle_moe(moe, hidden, half, {one}, std::nullopt).values[0], 1);  // (0.5 * 2)^2, not 0.5 * 2^2.
}

MoeConfig routed(RoutingMethod method, std::int64_t experts, std::int64_t top_k) {
  MoeConfig moe;
  moe.num_experts = experts;
  moe.top_k = top_k;
  moe.routing = routing_preset(method);
  return moe;
}

TEST(OracleRoute, MasksGroupsBelowEveryScore) {
  MoeConfig moe = routed(RoutingMethod::deepseek_v3, 4, 2);
  moe.routing.num_expert_group = 2;
  moe.routing.topk_group = 1;
  const double low = std::log(0.4 / 0.6), logits[] = {0, 0, low, low}, bias[] = {-1, -1.2, -1.1, -1.1};
  const RowChoice row = route_row(moe, logits, bias, {});
  EXPECT_EQ(row.ids, (std::vector<std::int64_t>{0, 1}));
  EXPECT_NEAR(row.weights[0], 0.5, 1e-12);
}

TEST(OracleRoute, ChoosesNanLastWhateverItsBias) {
  const MoeConfig moe = routed(RoutingMethod::minimax2, 3, 2);
  const double logits[] = {-3, kNan, -4}, bias[] = {0, 5, 0};
  EXPECT_EQ(route_row(moe, logits, bias, {}).ids, (std::vector<std::int64_t>{0, 2}));
  const double nothing[] = {kNan, kNan, kNan};
  const RowChoice row = route_row(moe, nothing, bias, {});
  EXPECT_EQ(row.ids, (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(row.weights, (std::vector<double>{0, 0}));
}

TEST(OracleRoute, BreaksTiesByIndexAndReportsHowCloseItWas) {
  const MoeConfig moe = routed(RoutingMethod::renormalize, 4, 2);
  const double tied[] = {1, 2, 2, 2}, close[] = {1, 2, 2 + 1e-7, 0};
  EXPECT_EQ(route_row(moe, tied, {}, {}).ids, (std::vector<std::int64_t>{1, 2}));
  EXPECT_GT(route_row(moe, tied, {}, {}).margin, 1e-3);
  EXPECT_LT(route_row(moe, close, {}, {}).margin, 1e-6);
}

TEST(OracleRoute, ScalesAndAppendsSharedSlots) {
  MoeConfig moe = routed(RoutingMethod::sigmoid_renorm, 3, 1);
  moe.routing.routed_scaling_factor = 2.5;
  moe.routing.num_fused_shared_experts = 1;
  const double logits[] = {0, 1, 0};
  const RowChoice row = route_row(moe, logits, {}, {});
  EXPECT_EQ(row.ids, (std::vector<std::int64_t>{1, 3}));
  EXPECT_NEAR(row.weights[0], 2.5, 1e-9);
  EXPECT_EQ(row.weights[1], 1.0);
  moe.routed_scale_on_output = true;
  EXPECT_NEAR(route_row(moe, logits, {}, {}).weights[0], 1.0, 1e-9);
}

TEST(OracleRoute, SparsemixerWeighsAmongWhatIsNearAndLeft) {
  MoeConfig moe = routed(RoutingMethod::sparsemixer, 4, 2);
  moe.routing.sparsemixer_jitter = 0.1;
  // Near 2 within a fifth: 2 and 1.8. Then, without the first, near 1.8: 1.8 and 1.5.
  const double logits[] = {1.5, 2, 1.8, 0.5};
  const RowChoice row = route_row(moe, logits, {}, {});
  EXPECT_EQ(row.ids, (std::vector<std::int64_t>{1, 2}));
  EXPECT_NEAR(row.weights[0], 1 / (1 + std::exp(-0.2)), 1e-12);
  EXPECT_NEAR(row.weights[1], 1 / (1 + std::exp(-0.3)), 1e-12);
}

}  // namespace
}  // namespace conclave::verify_detail
