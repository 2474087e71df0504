// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What a caller can get wrong about a layer, each with a message that says what was given and what was expected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "kernel/layer_fixture.hpp"
#include "support/message_of.hpp"

namespace conclave {
namespace {

using test::message_of;
using ::testing::HasSubstr;

std::string building(const Problem& p, const std::function<void(LayerWeights&)>& edit) {
  test::LayerTensors t = test::random_layer(p, 1);
  edit(t.weights);
  const Registry registry = builtin_registry();
  auto executor = make_inline_executor();
  return message_of([&] { MoeLayer(plan(p, registry), registry, t.weights, Stream::cpu(*executor)); });
}

TEST(LayerErrors, WeightsThatDoNotFitTheConfiguration) {
  Problem p = test::small_problem();
  const Tensor extra = test::random_tensor(DType::f32, {40}, 3);
  EXPECT_THAT(building(p, [&](LayerWeights& w) { w.shared_gate = extra; }),
              HasSubstr("shared_gate: given, but the configuration does not have it"));
  p.moe.shared.intermediate_size = 8;
  EXPECT_THAT(building(p, [](LayerWeights& w) { w.shared_w2.reset(); }),
              HasSubstr("shared_w2: missing, but the configuration needs it"));
  EXPECT_THAT(building(p, [&](LayerWeights& w) { w.router_weight = extra; }),
              HasSubstr("router_weight: given f32[40], expected f32, bf16 or f16 of shape f32[8, 40]"));
  // Case 53: rows of w13 for a gated activation.
  EXPECT_THAT(building(p, [](LayerWeights& w) { w.experts.w13 = w.experts.w13.narrow(1, 0, 24); }), HasSubstr("48"));
}

std::string running(
    const std::function<void(LayerInput&, TensorView&)>& edit,
    const std::function<void(Problem&)>& edit_problem = [](Problem&) {}) {
  Problem p = test::small_problem();
  edit_problem(p);
  const Registry registry = builtin_registry();
  auto executor = make_inline_executor();
  const test::LayerTensors t = test::random_layer(p, 1);
  MoeLayer layer(plan(p, registry), registry, t.weights, Stream::cpu(*executor));
  const Tensor x = test::random_tensor(DType::f32, {5, 40}, 2);
  const Tensor y = test::poisoned_tensor(DType::f32, {5, 40});
  LayerInput input;
  input.hidden_states = x;
  TensorView output = y;
  edit(input, output);
  Workspace workspace;
  const std::string message = message_of([&] { layer.run(input, output, workspace, Stream::cpu(*executor)); });
  if (message != "no error") {
    for (double v : test::values(y)) EXPECT_TRUE(std::isnan(v)) << "half-written output";
  }
  return message;
}

TEST(LayerErrors, InputsThatBreakTheContract) {
  EXPECT_EQ(running([](LayerInput&, TensorView&) {}), "no error");
  const Tensor wide = test::random_tensor(DType::f32, {5, 41}, 2);
  EXPECT_THAT(running([&](LayerInput& in, TensorView&) { in.hidden_states = wide; }),
              HasSubstr("hidden_states: given f32[5, 41], expected f32[5, 40]"));
  const Tensor half = test::random_tensor(DType::bf16, {5, 40}, 2);
  EXPECT_THAT(running([&](LayerInput& in, TensorView&) { in.hidden_states = half; }), HasSubstr("given bf16[5, 40]"));
  EXPECT_THAT(running([](LayerInput&, TensorView& out) { out = out.narrow(0, 0, 4); }),
              HasSubstr("output: given f32[4, 40], expected f32[5, 40]"));
  EXPECT_THAT(running([](LayerInput& in, TensorView& out) { in.hidden_states = out; }), HasSubstr("overlaps"));
  EXPECT_THAT(running([](LayerInput&, TensorView&) {}, [](Problem& p) { p.moe.max_num_tokens = 4; }),
              HasSubstr("5 tokens, planned for at most 4"));
}

TEST(LayerErrors, CheckedModeNamesTheBadId) {
  const Tensor ids = test::tensor_of(DType::i32, {5, 3}, {0, 1, 2, 3, 8, 4, -1, -1, -1, 0, 1, 2, 5, 6, 7});
  const Tensor weights = test::random_weights(DType::f32, 5, 3, 4);
  const auto edit = [&](LayerInput& in, TensorView&) { in.routing = Routing{ids, weights}; };
  EXPECT_THAT(running(edit, [](Problem& p) { p.moe.checked = true; }),
              HasSubstr("topk_ids[1, 1]: given 8, expected -1 or 0 to 7"));
  EXPECT_EQ(running(edit), "no error");
}

TEST(LayerErrors, WeightsOfAnotherDtypeAreNamed) {
  const Tensor ids = test::tensor_of(DType::i32, {5, 3}, std::vector<double>(15, 1));
  const Tensor weights = test::tensor_of(DType::f64, {5, 3}, std::vector<double>(15, 1));
  EXPECT_THAT(running([&](LayerInput& in, TensorView&) {
                in.routing = Routing{ids, weights};
              }),
              HasSubstr("topk_weights: given f64[5, 3], expected f32, bf16 or f16"));
}

}  // namespace
}  // namespace conclave
