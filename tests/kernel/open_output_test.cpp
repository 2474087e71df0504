// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// run_open() of kernel and layer: what it leaves open, finished by the tail, is what run() gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conclave/kernel.hpp"
#include "conclave/registry.hpp"
#include "conclave/tail.hpp"
#include "kernel/layer_fixture.hpp"
#include "support/message_of.hpp"

namespace conclave {
namespace {

using ::testing::HasSubstr;

class OpenOutput : public ::testing::Test {
 protected:
  MoeLayer make(const Problem& p, const char* experts) {
    PlanOptions options;
    options.experts = experts;
    tensors_ = test::random_layer(p, 7);
    return MoeLayer(plan(p, registry_, options), registry_, tensors_.weights, stream_);
  }
  /// Poisoned memory of exactly the size that the layer asks for.
  MoeOutput open(MoeLayer& layer, const ConstTensorView& x, Workspace& workspace) {
    workspace.region({}, layer.open_workspace_bytes());
    workspace.poison();
    workspace.lock();
    LayerInput input;
    input.hidden_states = x;
    return layer.run_open(input, workspace, stream_);
  }
  Registry registry_ = builtin_registry();
  std::unique_ptr<Executor> executor_ = make_executor(2);
  Stream stream_ = Stream::cpu(*executor_);
  test::LayerTensors tensors_;
};

TEST_F(OpenOutput, FinishedIsWhatRunGives) {
  for (const char* experts : {"experts/reference_unfinalized", "experts/reference_standard"})
    for (bool shared : {false, true})
      for (bool scale_on_output : {false, true}) {
        Problem p = test::small_problem();
        p.moe.routing.routed_scaling_factor = 2.5;
        p.moe.routed_scale_on_output = scale_on_output;
        if (shared) p.moe.shared = {.intermediate_size = 12, .sigmoid_gate = true};
        MoeLayer layer = make(p, experts);
        const Tensor x = test::random_tensor(DType::f32, {11, p.moe.hidden_size}, 9);
        const Tensor expected = test::run_layer(layer, x).output;
        Workspace workspace;
        const MoeOutput left = open(layer, x, workspace);
        EXPECT_EQ(left.unfinalized.has_value(), std::string(experts) == "experts/reference_unfinalized");
        EXPECT_EQ(left.shared_output.has_value(), shared);
        EXPECT_EQ(left.routed_scaling_factor, scale_on_output ? 2.5 : 1.0);
        Tensor finished = test::poisoned_tensor(DType::f32, {11, p.moe.hidden_size});
        finish(left, finished, stream_);
        EXPECT_TRUE(test::same_bytes(finished, expected)) << experts << " " << shared << " " << scale_on_output;
      }
}

/// The whole chain against the layer in double: experts that stop after the second product, then the fused tail.
TEST_F(OpenOutput, RunTailIsTheNormOfTheLayerAndTheResidual) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    Problem p = test::small_problem(dtype);
    p.moe.shared = {.intermediate_size = 12};
    p.moe.routing.routed_scaling_factor = 1.5;
    MoeLayer layer = make(p, "experts/reference_unfinalized");
    const Tensor x = test::random_tensor(dtype, {5, p.moe.hidden_size}, 9);
    const test::LayerRun plain = test::run_layer(layer, x);
    const std::vector<double> y = test::oracle_layer(p.moe, tensors_.weights, x, plain);
    Workspace workspace;
    TailInput input;
    input.moe = open(layer, x, workspace);
    EXPECT_EQ(input.moe.unfinalized->expert_weights.dtype, DType::f32);
    input.residual = x.view();
    const Tensor weight = test::random_tensor(dtype, {p.moe.hidden_size}, 10);
    input.norm_weight = weight;
    Tensor normed = test::poisoned_tensor(DType::f32, {5, p.moe.hidden_size});
    TailOutput output;
    output.normed = normed.view();
    const test::PoisonedArena memory([&](Arena& a) { plan_tail_scratch(a, 5, p.moe.hidden_size); });
    Arena arena = memory.arena();
    run_tail({}, input, output, arena, stream_);
    std::vector<double> expected;
    for (std::int64_t m = 0; m < 5; ++m) {
      double squares = 0;
      const auto z = [&](std::int64_t h) {
        return y[static_cast<std::size_t>(m * p.moe.hidden_size + h)] + test::at(x, {m, h});
      };
      for (std::int64_t h = 0; h < p.moe.hidden_size; ++h) squares += z(h) * z(h);
      for (std::int64_t h = 0; h < p.moe.hidden_size; ++h)
        expected.push_back(z(h) / std::sqrt(squares / static_cast<double>(p.moe.hidden_size) + 1e-6) *
                           test::at(weight, {h}));
    }
    EXPECT_LT(test::rel_error(normed, expected), dtype == DType::f32 ? 1e-5 : 6e-3) << name_of(dtype);
  }
}

TEST_F(OpenOutput, NoTokensAreFinalized) {
  MoeLayer layer = make(test::small_problem(), "experts/reference_unfinalized");
  Workspace workspace;
  const MoeOutput left = open(layer, TensorView(nullptr, DType::f32, {0, 40}), workspace);
  EXPECT_FALSE(left.unfinalized.has_value());
  ASSERT_TRUE(left.routed.has_value());
  EXPECT_EQ(left.routed->size(0), 0);
  finish(left, TensorView(nullptr, DType::f32, {0, 40}), stream_);
}

TEST_F(OpenOutput, RefusesTermsBehindTheSum) {
  Problem p = test::small_problem();
  p.moe.latent_size = 16;
  MoeLayer layer = make(p, "experts/reference_unfinalized");
  const Tensor x = test::random_tensor(DType::f32, {2, p.moe.hidden_size}, 9);
  Workspace workspace;
  EXPECT_THAT(test::message_of([&] { open(layer, x, workspace); }), HasSubstr("run_open: latent_size 16"));
}

TEST_F(OpenOutput, NeedsAFinalizeThatCanBeLeftOut) {
  const Problem p = test::small_problem();
  class Closed : public ModularPrepareFinalize {
   public:
    const std::string& name() const noexcept override { return name_; }
    void plan_scratch(Arena&, std::int64_t) const override {}
    Prepared prepare(const PrepareInput&, Arena&, Stream) override { return {}; }
    void finalize(const FinalizeInput&, const TensorView&, Stream) override {}
    std::string name_ = "dispatch/closed";
  };
  const auto experts = [&] { return registry_.experts.find("experts/reference_unfinalized")->make({p, nullptr}); };
  EXPECT_THAT(test::message_of([&] { FusedMoeKernel(p, std::make_unique<Closed>(), experts()); }),
              HasSubstr("experts/reference_unfinalized leaves the sum over top-k open and dispatch/closed cannot"));
  // Selection does not pair them either, and says why.
  Registry r = registry_;
  Entry<PrepareFinalize> closed = *r.prepare_finalizes.find("dispatch/no_ep");
  closed.name = "dispatch/closed";
  closed.defers_finalize = false;
  r.prepare_finalizes.add_first(closed);
  PlanOptions options;
  options.experts = "experts/reference_unfinalized";
  const Plan chosen = plan(p, r, options);
  EXPECT_EQ(chosen.prepare_finalize.chosen, "dispatch/no_ep");
  EXPECT_THAT(chosen.report(), HasSubstr("finalizes and experts/reference_unfinalized leaves that to the consumer"));
}

}  // namespace
}  // namespace conclave
