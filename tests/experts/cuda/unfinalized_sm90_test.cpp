// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Rows that nobody has summed, on a Hopper GPU: finished there they are the layer's output, and the tail that fuses the
// sum with what follows gives the norm of it.
#include <gtest/gtest.h>

#include "conclave/tail.hpp"
#include "experts/cuda/gpu_layers.hpp"

namespace conclave {
namespace {

constexpr const char* kOpen = "experts/cuda_unfinalized_sm90";

class CudaUnfinalized : public test::OnHopper {
 protected:
  /// x + layer(x), normed, on the GPU, from experts that finalize or do not.
  struct Device {
    Tensor x, ids, weights, norm_weight, residual_out, normed;
  };
  Device buffers(const Call& in, const Tensor& norm_weight) const {
    const std::int64_t m = in.x.view().size(0), h = in.x.view().size(1);
    return {up(in.x),
            up(in.ids),
            up(in.weights),
            up(norm_weight),
            poisoned(DType::f32, {m, h}),
            poisoned(DType::f32, {m, h})};
  }
  void run_with_tail(MoeLayer& layer, const Device& d, Workspace& workspace, Workspace& scratch) const {
    const std::int64_t m = d.x.view().size(0), h = d.x.view().size(1);
    TailInput input;
    input.moe = layer.run_open({.hidden_states = d.x, .routing = Routing{d.ids, d.weights}}, workspace, stream());
    input.residual = d.x.view();
    input.norm_weight = d.norm_weight;
    TailOutput output;
    output.residual_out = d.residual_out.view();
    output.normed = d.normed.view();
    Arena measure = Arena::measuring(stream().device);
    plan_tail_scratch(measure, m, h);
    Arena arena(scratch.region({}, measure.peak()), stream().device);
    run_tail({}, input, output, arena, stream());
  }
};

TEST_F(CudaUnfinalized, FinishedIsTheLayersOutput) {
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const std::int64_t tokens : {1, 24, 190, 1100})
      expect_close(kOpen, problem({6, 2, 264, 136}, dtype, tokens), tokens, 6, "open");
  for (const std::int64_t tokens : {3, 700})
    expect_close(kOpen, problem({40, 3, 128, 64}, DType::bf16, tokens), tokens, 1, "hot");
  expect_close(kOpen, problem({2, 1, 4096, 72}, DType::bf16, 1200), 1200, 2, "sorted, in pairs of blocks");
}

TEST_F(CudaUnfinalized, RouterWeightOnInputIsNotAppliedAgain) {
  Problem p = problem({5, 1, 96, 48}, DType::bf16, 40);
  p.moe.apply_router_weight_on_input = true;
  expect_close(kOpen, p, 40, 5, "weight on input");
}

TEST_F(CudaUnfinalized, RemoteExperts) {
  expect_remote_rows_to_be_zero(kOpen);
}

TEST_F(CudaUnfinalized, ARowsBitsDoNotDependOnTheBatch) {
  expect_batch_invariance(kOpen);
}

TEST_F(CudaUnfinalized, AGraphFollowsTheRouting) {
  expect_graph_to_follow_the_routing(kOpen);
}

TEST_F(CudaUnfinalized, RefusesRowsThatWouldNotBeDense) {
  const Registry registry = builtin_registry();
  const Support support = registry.experts.find(kOpen)->supports(problem({3, 2, 67, 45}, DType::bf16, 8));
  EXPECT_FALSE(support);
  EXPECT_NE(support.reason().find("hidden_size 67"), std::string::npos) << support.reason();
}

/// Layer and tail in one graph, replayed with another routing, beside the same two on the CPU.
TEST_F(CudaUnfinalized, WithTheTailItIsTheNormOfTheSum) {
  for (const char* part : {kOpen, "experts/cuda_grouped_sm90"}) {
    Problem p = problem({6, 2, 264, 136}, DType::bf16, 90);
    p.moe.shared.intermediate_size = 40;
    p.moe.routed_scale_on_output = true;
    p.moe.routing.routed_scaling_factor = 2.5;
    LayerWeights w = weights(p);
    const Tensor shared_w13 = test::random_tensor(DType::bf16, {80, 264}, 1, 1 / std::sqrt(264.0));
    const Tensor shared_w2 = test::random_tensor(DType::bf16, {264, 40}, 2, 1 / std::sqrt(40.0));
    w.shared_w13 = shared_w13.view();
    w.shared_w2 = shared_w2.view();
    MoeLayer ours = layer(p, stream(), part, w);
    MoeLayer reference = layer(p, Stream::cpu(*executor_), "experts/reference_unfinalized", w);
    const Tensor norm_weight = test::random_tensor(DType::bf16, {264}, 3);
    const Device d = buffers(call(p, 90, 6, 21), norm_weight);
    Workspace workspace(stream().device), scratch(stream().device);
    run_with_tail(ours, d, workspace, scratch);
    workspace.lock();
    scratch.lock();
    const CudaGraph graph(stream(), [&] { run_with_tail(ours, d, workspace, scratch); });
    const Call in = call(p, 90, 3, 22);
    copy(in.x, d.x, stream());
    copy(in.ids, d.ids, stream());
    copy(in.weights, d.weights, stream());
    workspace.poison();
    scratch.poison();
    graph.launch(stream());

    Workspace host;
    TailInput input;
    input.moe = reference.run_open({.hidden_states = in.x, .routing = Routing{in.ids, in.weights}}, host,
                                   Stream::cpu(*executor_));
    input.residual = in.x.view();
    input.norm_weight = norm_weight;
    const Tensor residual_out(DType::f32, {90, 264}), normed(DType::f32, {90, 264});
    TailOutput output;
    output.residual_out = residual_out.view();
    output.normed = normed.view();
    const test::PoisonedArena memory([&](Arena& a) { plan_tail_scratch(a, 90, 264); });
    Arena arena = memory.arena();
    run_tail({}, input, output, arena, Stream::cpu(*executor_));
    EXPECT_LT(error(down(d.residual_out), residual_out), 6e-3) << part;
    EXPECT_LT(error(down(d.normed), normed), 6e-3) << part;
  }
}

}  // namespace
}  // namespace conclave
