// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Layers of one part on a GPU beside the plain part on the CPU: the same weights, ids and router weights.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "conclave/device.hpp"
#include "conclave/layer.hpp"
#include "conclave/registry.hpp"
#include "support/gpu.hpp"
#include "support/tensors.hpp"

namespace conclave::test {

struct LayerSizes {
  std::int64_t experts, top_k, hidden, inner;
};

class GpuLayers : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    facts_ = cuda_facts(0);
  }

  Problem problem(const LayerSizes& s, DType dtype, std::int64_t max_tokens) const {
    Problem p;
    p.moe.num_experts = s.experts;
    p.moe.top_k = s.top_k;
    p.moe.hidden_size = s.hidden;
    p.moe.intermediate_size = s.inner;
    p.moe.max_num_tokens = max_tokens;
    p.moe.dtype = p.moe.weight_dtype = dtype;
    p.moe.routing = routing_preset(RoutingMethod::renormalize);
    p.device = facts_;
    return p;
  }

  static LayerWeights weights(const Problem& p) {
    const MoeConfig& c = p.moe;
    const std::int64_t rows = w13_rows(is_gated(c.activation), c.intermediate_size);
    auto owned = std::make_shared<std::vector<Tensor>>();
    LayerWeights w;
    const auto make = [&](DType dtype, std::initializer_list<std::int64_t> shape, double scale) {
      owned->push_back(random_tensor(dtype, shape, 100 + owned->size(), static_cast<float>(scale)));
      return ConstTensorView(owned->back());
    };
    w.experts.w13 = make(c.dtype, {c.num_experts, rows, c.hidden_size}, 1 / std::sqrt(c.hidden_size));
    w.experts.w2 =
        make(c.dtype, {c.num_experts, c.hidden_size, c.intermediate_size}, 1 / std::sqrt(c.intermediate_size));
    if (c.has_w13_bias) w.experts.w13_bias = make(DType::f32, {c.num_experts, rows}, 0.3);
    if (c.has_w2_bias) w.experts.w2_bias = make(DType::f32, {c.num_experts, c.hidden_size}, 0.3);
    w.keep_alive = owned;
    return w;
  }

  MoeLayer layer(const Problem& p, Stream where, const char* experts) const {
    return layer(p, where, experts, weights(p));
  }
  MoeLayer layer(const Problem& p, Stream where, const char* experts, const LayerWeights& w) const {
    Problem here = p;
    if (where.device.type == DeviceType::cpu) here.device = cpu_facts(2);
    const Registry registry = builtin_registry();
    return MoeLayer(plan(here, registry, {.experts = experts}), registry, w, where);
  }

  struct Call {
    Tensor x, ids, weights;
  };
  /// Ids drawn from the first `hot` experts alone; every seventh slot is empty.
  Call call(const Problem& p, std::int64_t tokens, std::int64_t hot, std::uint64_t seed) const {
    const MoeConfig& c = p.moe;
    Call in{random_tensor(c.dtype, {tokens, c.hidden_size}, seed), Tensor(DType::i32, {tokens, c.top_k}),
            random_tensor(DType::f32, {tokens, c.top_k}, seed + 1)};
    std::uint64_t state = seed * 2654435761U + 1;
    for (std::int64_t i = 0; i < tokens * c.top_k; ++i) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      const auto id = static_cast<std::int32_t>((state >> 33) % static_cast<std::uint64_t>(hot));
      in.ids.as<std::int32_t>()[i] = i % 7 == 6 ? -1 : id;
    }
    return in;
  }

  Tensor run_on_gpu(MoeLayer& layer, const Call& in) const {
    const Tensor x = up(in.x), ids = up(in.ids), weights = up(in.weights);
    const Tensor y = poisoned(in.x.view().dtype, {in.x.view().size(0), in.x.view().size(1)});
    Workspace workspace(stream().device);
    layer.run({.hidden_states = x, .routing = Routing{ids, weights}}, y, workspace, stream());
    return down(y);
  }
  Tensor run_on_cpu(MoeLayer& layer, const Call& in) const {
    const Tensor y(in.x.view().dtype, {in.x.view().size(0), in.x.view().size(1)});
    Workspace workspace;
    layer.run({.hidden_states = in.x, .routing = Routing{in.ids, in.weights}}, y, workspace, Stream::cpu(*executor_));
    return y;
  }

  static double error(const Tensor& got, const Tensor& want) { return rel_error(got, values(want)); }

  /// `part` on the GPU against the plain part on the CPU.
  void expect_close(const char* part, const Problem& p, std::int64_t tokens, std::int64_t hot,
                    const std::string& what) {
    expect_close(part, p, weights(p), tokens, hot, what);
  }
  void expect_close(const char* part, const Problem& p, const LayerWeights& w, std::int64_t tokens, std::int64_t hot,
                    const std::string& what) {
    MoeLayer ours = layer(p, stream(), part, w);
    MoeLayer reference = layer(p, Stream::cpu(*executor_), "experts/reference_standard", w);
    const Call in = call(p, tokens, hot, 7);
    // Both round the input of GEMM2 and the output; ours rounds the rows between as well.
    const double bound = p.moe.dtype == DType::bf16 ? 6e-3 : p.moe.dtype == DType::f16 ? 8e-4 : 1e-5;
    EXPECT_LT(error(run_on_gpu(ours, in), run_on_cpu(reference, in)), bound)
        << what << ", " << tokens << " tokens, " << ours.plan().experts.chosen;
  }

  /// Every activation, with biases, in every order of gate and up.
  void expect_every_activation(const char* part) {
    for (const Activation activation : all_activations()) {
      Problem p = problem({4, 2, 96, 80}, DType::bf16, 33);
      p.moe.activation = activation;
      p.moe.has_w13_bias = p.moe.has_w2_bias = true;
      if (activation == Activation::situ) p.moe.activation_params.beta = p.moe.activation_params.linear_beta = 4.0;
      if (activation == Activation::swigluoai_uninterleave) p.moe.activation_params.limit = 7.0;
      for (const W13Layout layout : {W13Layout::gate_up, W13Layout::up_gate, W13Layout::interleaved}) {
        if (!is_gated(activation) && layout != W13Layout::gate_up) continue;
        p.moe.w13_layout = layout;
        expect_close(part, p, 33, 4, std::string(name_of(activation)));
      }
    }
  }

  /// Half of the experts are on another rank.
  void expect_remote_rows_to_be_zero(const char* part) {
    const Problem p = problem({6, 2, 72, 40}, DType::bf16, 50);
    LayerWeights w = weights(p);
    w.experts.w13 = w.experts.w13.narrow(0, 0, 3);
    w.experts.w2 = w.experts.w2.narrow(0, 0, 3);
    const Tensor map = tensor_of(DType::i32, {6}, {-1, 2, -1, 0, -1, 1});
    w.expert_map = ConstTensorView(map);
    expect_close(part, p, w, 50, 6, "remote");
    MoeLayer ours = layer(p, stream(), part, w);
    Call in = call(p, 50, 6, 3);
    for (std::int64_t i = 0; i < in.ids.view().numel(); ++i)
      in.ids.as<std::int32_t>()[i] = static_cast<std::int32_t>(2 * (i % 3));
    for (const double value : values(run_on_gpu(ours, in))) EXPECT_EQ(value, 0.0);
  }

  /// A graph recorded with one routing, replayed with others: fewer experts, then none at all.
  void expect_graph_to_follow_the_routing(const char* part) {
    const Problem p = problem({6, 2, 264, 136}, DType::bf16, 90);
    MoeLayer ours = layer(p, stream(), part);
    const Call one = call(p, 90, 6, 21);
    const Tensor x = up(one.x), ids = up(one.ids), weights = up(one.weights);
    const Tensor y = poisoned(DType::bf16, {90, 264});
    Workspace workspace(stream().device);
    const auto run = [&] { ours.run({.hidden_states = x, .routing = Routing{ids, weights}}, y, workspace, stream()); };
    run();
    workspace.lock();
    workspace.poison();
    const CudaGraph graph(stream(), run);
    Call two = call(p, 90, 2, 22);
    for (const bool empty : {false, true}) {
      if (empty) std::memset(two.ids.view().data, 0xFF, static_cast<std::size_t>(two.ids.view().bytes()));
      copy(two.x, x, stream());
      copy(two.ids, ids, stream());
      copy(two.weights, weights, stream());
      graph.launch(stream());
      const Tensor got = down(y), want = run_on_gpu(ours, two);
      EXPECT_TRUE(same_bytes(got, want)) << (empty ? "no expert at all" : "two experts");
    }
    for (const double value : values(down(y))) ASSERT_EQ(value, 0.0);
  }

  /// From one token to many: other tiles, other neighbours, the same sums in the same order.
  void expect_batch_invariance(const char* part, const LayerSizes& sizes = {6, 2, 264, 136}) {
    const Problem p = problem(sizes, DType::bf16, 1100);
    MoeLayer ours = layer(p, stream(), part);
    const Call all = call(p, 1100, sizes.experts, 11);
    const Tensor whole = run_on_gpu(ours, all);
    for (const std::int64_t tokens : {1, 9, 40, 100, 250, 600}) {
      const auto first = [&](const Tensor& t) {
        Tensor some(t.view().dtype, {tokens, t.view().size(1)});
        std::memcpy(some.view().data, t.view().data, static_cast<std::size_t>(some.view().bytes()));
        return some;
      };
      const Tensor some = run_on_gpu(ours, {first(all.x), first(all.ids), first(all.weights)});
      EXPECT_TRUE(same_bytes(some, ConstTensorView(whole).narrow(0, 0, tokens))) << tokens;
    }
    const Tensor again = run_on_gpu(ours, all);
    EXPECT_TRUE(same_bytes(again, whole));
  }

  DeviceFacts facts_;
  std::unique_ptr<Executor> executor_ = make_executor(2);
};

class OnHopper : public GpuLayers {
 protected:
  void SetUp() override {
    GpuLayers::SetUp();
    if (IsSkipped()) return;
    if (facts_.compute_capability != 90)
      GTEST_SKIP() << "compute capability " << facts_.compute_capability << ", these parts need 90";
  }
};

}  // namespace conclave::test
