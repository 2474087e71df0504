// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The layer against a computation in double, for everything that it does around the experts.
#include "conclave/layer.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "kernel/layer_fixture.hpp"

namespace conclave {
namespace {

struct Variant {
  const char* name;
  std::function<void(MoeConfig&)> edit;
};

void fused_slots(MoeConfig& c) {
  c.routing.num_fused_shared_experts = 2;
  c.routing.fused_shared_weight = 0.75;
}

const std::vector<Variant>& variants() {
  static const std::vector<Variant> list{
      {"plain", [](MoeConfig&) {}},
      {"shared", [](MoeConfig& c) { c.shared.intermediate_size = 56; }},
      {"shared_gated",
       [](MoeConfig& c) {
         c.shared = {19, true};
       }},
      {"scale_folded", [](MoeConfig& c) { c.routing.routed_scaling_factor = 2.5; }},
      {"scale_on_output",
       [](MoeConfig& c) {
         c.routing.routed_scaling_factor = 2.5;
         c.routed_scale_on_output = true;
         c.shared.intermediate_size = 8;
       }},
      {"zero_experts", [](MoeConfig& c) { c.zero_experts = 3; }},
      {"latent", [](MoeConfig& c) { c.latent_size = 12; }},
      {"latent_shared",
       [](MoeConfig& c) {
         c.latent_size = 52, c.shared = {8, true};
       }},
      {"fused_shared", fused_slots},
      {"on_input",
       [](MoeConfig& c) {
         c.top_k = 1, c.apply_router_weight_on_input = true;
         c.routing = routing_preset(RoutingMethod::llama4);
       }},
      {"bias", [](MoeConfig& c) { c.has_w13_bias = c.has_w2_bias = true; }},
      {"not_gated", [](MoeConfig& c) { c.activation = Activation::relu2_no_mul, c.shared.intermediate_size = 9; }},
      {"selection_bias",
       [](MoeConfig& c) {
         c.routing = routing_preset(RoutingMethod::deepseek_v3), c.routing.num_expert_group = 4,
         c.routing.topk_group = 2;
       }},
  };
  return list;
}

class LayerVariants : public ::testing::TestWithParam<std::tuple<std::size_t, DType>> {};

/// f32: summation order only. bf16 and f16: storage of weights is shared with the oracle, so what remains is the
/// rounding of intermediates and of the output.
double bound(DType dtype) {
  return dtype == DType::f32 ? 2e-6 : 6e-3;
}

TEST_P(LayerVariants, MatchesDouble) {
  const auto [index, dtype] = GetParam();
  const Variant& variant = variants()[index];
  Problem p = test::small_problem(dtype);
  variant.edit(p.moe);
  const test::LayerTensors t = test::random_layer(p, 100 + index);
  const Tensor x = test::random_tensor(dtype, {17, p.moe.hidden_size}, 7 + index);
  const std::vector<double> before = test::values(x);
  const Registry registry = builtin_registry();
  auto executor = make_executor(2);
  int ran = 0;
  for (const auto& entry : registry.experts.entries()) {
    PlanOptions options;
    options.experts = entry.name;
    std::optional<Plan> planned;
    try {
      planned = plan(p, registry, options);
    } catch (const Error& e) {
      ASSERT_EQ(e.kind(), ErrorKind::unsupported) << e.what();
      continue;
    }
    MoeLayer layer(*planned, registry, t.weights, Stream::cpu(*executor));
    const test::LayerRun run = test::run_layer(layer, x);
    EXPECT_LT(test::rel_error(run.output, test::oracle_layer(p.moe, t.weights, x, run)), bound(dtype))
        << variant.name << " " << entry.name;
    EXPECT_EQ(test::values(x), before) << entry.name << " changed its input";
    ++ran;
  }
  EXPECT_GE(ran, 2);
}

INSTANTIATE_TEST_SUITE_P(Each, LayerVariants,
                         ::testing::Combine(::testing::Range<std::size_t>(0, variants().size()),
                                            ::testing::Values(DType::f32, DType::bf16, DType::f16)),
                         [](const auto& param) {
                           return std::string(variants()[std::get<0>(param.param)].name) + "_" +
                                  std::string(name_of(std::get<1>(param.param)));
                         });

MoeLayer make_layer(const Problem& p, const test::LayerTensors& t) {
  const Registry registry = builtin_registry();
  auto executor = make_executor(2);
  return MoeLayer(plan(p, registry), registry, t.weights, Stream::cpu(*executor));
}

/// 1.5 times the sum, rounded once, is often not 1.5 times the rounded sum, rounded again.
TEST(Layer, WhatTheEpilogueAddsToIsNotRoundedBefore) {
  Problem p = test::small_problem(DType::bf16);
  const test::LayerTensors t = test::random_layer(p, 31);
  const Tensor x = test::random_tensor(DType::bf16, {17, p.moe.hidden_size}, 32);
  const Registry registry = builtin_registry();
  auto executor = make_executor(2);
  int ran = 0;
  for (const auto& entry : registry.experts.entries()) {
    const auto run = [&](double scale) {
      p.moe.routing.routed_scaling_factor = scale;
      p.moe.routed_scale_on_output = true;
      PlanOptions options;
      options.experts = entry.name;
      MoeLayer layer(plan(p, registry, options), registry, t.weights, Stream::cpu(*executor));
      return test::values(test::run_layer(layer, x).output);
    };
    p.moe.routed_scale_on_output = false;
    if (entry.monolithic || !entry.supports(p)) continue;
    const std::vector<double> plain = run(1.0), scaled = run(1.5);
    std::size_t different = 0;
    for (std::size_t i = 0; i < plain.size(); ++i)
      different += scaled[i] != test::decode(test::encode(1.5 * plain[i], test::kBf16), test::kBf16) ? 1 : 0;
    EXPECT_GT(different, plain.size() / 20) << entry.name;
    EXPECT_LT(different, plain.size() / 2) << entry.name;
    ++ran;
  }
  EXPECT_GE(ran, 2);
}

TEST(Layer, NoTokensWithNullDataIsLegal) {
  const Problem p = test::small_problem();
  MoeLayer layer = make_layer(p, test::random_layer(p, 1));
  auto executor = make_inline_executor();
  Workspace workspace;
  LayerInput input;
  input.hidden_states = ConstTensorView(nullptr, DType::f32, {0, 40});
  layer.run(input, TensorView(nullptr, DType::f32, {0, 40}), workspace, Stream::cpu(*executor));
}

TEST(Layer, InPlaceEqualsOutOfPlace) {
  Problem p = test::small_problem();
  const test::LayerTensors t = test::random_layer(p, 2);
  const Tensor x = test::random_tensor(DType::f32, {9, 40}, 3);
  MoeLayer plain = make_layer(p, t);
  const std::vector<double> expected = test::values(test::run_layer(plain, x).output);
  p.moe.in_place = true;
  MoeLayer layer = make_layer(p, t);
  auto executor = make_executor(2);
  Workspace workspace;
  LayerInput input;
  input.hidden_states = x;
  layer.run(input, x, workspace, Stream::cpu(*executor));
  EXPECT_EQ(test::values(x), expected);
}

// Case 120: rows of a larger tensor, for input and output.
TEST(Layer, RowStridesAreFree) {
  const Problem p = test::small_problem();
  const test::LayerTensors t = test::random_layer(p, 4);
  MoeLayer layer = make_layer(p, t);
  const Tensor big = test::random_tensor(DType::f32, {9, 97}, 5);
  const ConstTensorView x = ConstTensorView(big).narrow(1, 8, 40);
  const Tensor dense = test::tensor_of(DType::f32, {9, 40}, test::values(x));
  const std::vector<double> expected = test::values(test::run_layer(layer, dense).output);
  const Tensor target = test::poisoned_tensor(DType::f32, {9, 61});
  auto executor = make_executor(2);
  Workspace workspace;
  LayerInput input;
  input.hidden_states = x;
  const TensorView out = target.view().narrow(1, 11, 40);
  layer.run(input, out, workspace, Stream::cpu(*executor));
  EXPECT_EQ(test::values(out), expected);
  EXPECT_TRUE(std::isnan(test::at(target, {0, 10}))) << "wrote outside the output";
  EXPECT_TRUE(std::isnan(test::at(target, {8, 51}))) << "wrote outside the output";
}

TEST(Layer, GivenRoutingEqualsItsOwn) {
  const Problem p = test::small_problem();
  const test::LayerTensors t = test::random_layer(p, 6);
  MoeLayer layer = make_layer(p, t);
  const Tensor x = test::random_tensor(DType::f32, {13, 40}, 7);
  const test::LayerRun own = test::run_layer(layer, x);
  auto executor = make_executor(2);
  Workspace workspace;
  LayerInput input;
  input.hidden_states = x;
  input.routing = Routing{own.topk_ids, own.topk_weights};
  const Tensor out = test::poisoned_tensor(DType::f32, {13, 40});
  layer.run(input, out, workspace, Stream::cpu(*executor));
  EXPECT_EQ(test::values(out), test::values(own.output));
}

// Case 89: new weights in place give what a fresh layer gives.
TEST(Layer, UpdateWeightsEqualsAFreshLayer) {
  Problem p = test::small_problem();
  p.moe.shared = {9, true};
  const Tensor x = test::random_tensor(DType::f32, {13, 40}, 8);
  MoeLayer layer = make_layer(p, test::random_layer(p, 9));
  const std::vector<double> before = test::values(test::run_layer(layer, x).output);
  const test::LayerTensors other = test::random_layer(p, 50);
  auto executor = make_executor(2);
  layer.update_weights(other.weights, Stream::cpu(*executor));
  MoeLayer fresh = make_layer(p, other);
  const std::vector<double> after = test::values(test::run_layer(layer, x).output);
  EXPECT_EQ(after, test::values(test::run_layer(fresh, x).output));
  EXPECT_NE(after, before);
}

}  // namespace
}  // namespace conclave
