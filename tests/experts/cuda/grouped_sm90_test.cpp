// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The Hopper part against the plain CPU part on the same weights, ids and router weights: every width of tile, odd
// sizes, empty and hot experts, empty slots; equal bits on each run, in graphs, and whatever else is in the batch.
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

namespace conclave {
namespace {

struct Sizes {
  std::int64_t experts, top_k, hidden, inner;
};

class CudaGrouped : public test::OnGpu {
 protected:
  void SetUp() override {
    test::OnGpu::SetUp();
    if (IsSkipped()) return;
    facts_ = cuda_facts(0);
    if (facts_.compute_capability != 90)
      GTEST_SKIP() << "compute capability " << facts_.compute_capability << ", this part needs 90";
  }

  Problem problem(const Sizes& s, DType dtype, std::int64_t max_tokens) const {
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
      owned->push_back(test::random_tensor(dtype, shape, 100 + owned->size(), static_cast<float>(scale)));
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
    Problem here = p;
    if (where.device.type == DeviceType::cpu) here.device = cpu_facts(2);
    const Registry registry = builtin_registry();
    return MoeLayer(plan(here, registry, {.experts = experts}), registry, weights(p), where);
  }

  struct Call {
    Tensor x, ids, weights;
  };
  /// Ids drawn from the first `hot` experts alone; every seventh slot is empty.
  Call call(const Problem& p, std::int64_t tokens, std::int64_t hot, std::uint64_t seed) const {
    const MoeConfig& c = p.moe;
    Call in{test::random_tensor(c.dtype, {tokens, c.hidden_size}, seed), Tensor(DType::i32, {tokens, c.top_k}),
            test::random_tensor(DType::f32, {tokens, c.top_k}, seed + 1)};
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

  static double error(const Tensor& got, const Tensor& want) { return test::rel_error(got, test::values(want)); }

  void expect_close(const Problem& p, std::int64_t tokens, std::int64_t hot, const char* what) {
    MoeLayer ours = layer(p, stream(), kPart);
    MoeLayer reference = layer(p, Stream::cpu(*executor_), "experts/reference_standard");
    const Call in = call(p, tokens, hot, 7);
    // Both round the input of GEMM2 and the output; ours rounds the rows between as well.
    const double bound = p.moe.dtype == DType::bf16 ? 6e-3 : 8e-4;
    EXPECT_LT(error(run_on_gpu(ours, in), run_on_cpu(reference, in)), bound)
        << what << ", " << tokens << " tokens, " << ours.plan().experts.chosen;
  }

  static constexpr const char* kPart = "experts/cuda_grouped_sm90";
  DeviceFacts facts_;
  std::unique_ptr<Executor> executor_ = make_executor(2);
};

TEST_F(CudaGrouped, EveryWidthOfTile) {
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const std::int64_t tokens : {1, 5, 24, 70, 190, 400, 1100})
      expect_close(problem({6, 2, 264, 136}, dtype, tokens), tokens, 6, "even");
}

TEST_F(CudaGrouped, HotAndEmptyExperts) {
  for (const std::int64_t tokens : {3, 150, 700})
    expect_close(problem({40, 3, 128, 64}, DType::bf16, tokens), tokens, 1, "one");
}

TEST_F(CudaGrouped, SizesThatNothingDivides) {
  for (const std::int64_t tokens : {2, 300}) {
    expect_close(problem({3, 2, 67, 45}, DType::bf16, tokens), tokens, 3, "odd");
    expect_close(problem({3, 2, 8, 8}, DType::bf16, tokens), tokens, 3, "tiny");
  }
}

TEST_F(CudaGrouped, DeepRowsGoInPairsOfBlocks) {
  // Sorted rows, 192-row tiles, two blocks that share weights; the second has few rows, or none.
  for (const std::int64_t tokens : {1030, 1200})
    expect_close(problem({2, 1, 4096, 72}, DType::bf16, tokens), tokens, 2, "deep");
}

TEST_F(CudaGrouped, EveryActivationAndBias) {
  for (const Activation activation : all_activations()) {
    Problem p = problem({4, 2, 96, 80}, DType::bf16, 33);
    p.moe.activation = activation;
    p.moe.has_w13_bias = p.moe.has_w2_bias = true;
    if (activation == Activation::situ) p.moe.activation_params.beta = p.moe.activation_params.linear_beta = 4.0;
    if (activation == Activation::swigluoai_uninterleave) p.moe.activation_params.limit = 7.0;
    for (const W13Layout layout : {W13Layout::gate_up, W13Layout::up_gate, W13Layout::interleaved}) {
      if (!is_gated(activation) && layout != W13Layout::gate_up) continue;
      p.moe.w13_layout = layout;
      expect_close(p, 33, 4, std::string(name_of(activation)).c_str());
    }
  }
}

TEST_F(CudaGrouped, ARowsBitsDoNotDependOnTheBatch) {
  // From one token to many: other tiles, other neighbours, the same sums in the same order.
  const Problem p = problem({6, 2, 264, 136}, DType::bf16, 1100);
  MoeLayer ours = layer(p, stream(), kPart);
  const Call all = call(p, 1100, 6, 11);
  const Tensor whole = run_on_gpu(ours, all);
  for (const std::int64_t tokens : {1, 9, 40, 100, 250, 600}) {
    const auto first = [&](const Tensor& t) {
      Tensor part(t.view().dtype, {tokens, t.view().size(1)});
      std::memcpy(part.view().data, t.view().data, static_cast<std::size_t>(part.view().bytes()));
      return part;
    };
    const Tensor some = run_on_gpu(ours, {first(all.x), first(all.ids), first(all.weights)});
    EXPECT_TRUE(test::same_bytes(some, ConstTensorView(whole).narrow(0, 0, tokens))) << tokens;
  }
  const Tensor again = run_on_gpu(ours, all);
  EXPECT_TRUE(test::same_bytes(again, whole));
}

TEST_F(CudaGrouped, AGraphReplaysWithOtherRoutingAndOtherWeights) {
  const Problem p = problem({6, 2, 264, 136}, DType::bf16, 90);
  MoeLayer ours = layer(p, stream(), kPart);
  const Call one = call(p, 90, 6, 21), two = call(p, 90, 2, 22);
  const Tensor x = up(one.x), ids = up(one.ids), weights = up(one.weights);
  const Tensor y = poisoned(DType::bf16, {90, 264});
  Workspace workspace(stream().device);
  const auto run = [&] { ours.run({.hidden_states = x, .routing = Routing{ids, weights}}, y, workspace, stream()); };
  run();
  workspace.lock();
  const CudaGraph graph(stream(), run);
  copy(two.x, x, stream());
  copy(two.ids, ids, stream());
  copy(two.weights, weights, stream());
  graph.launch(stream());
  const Tensor got = down(y), want = run_on_gpu(ours, two);
  EXPECT_TRUE(test::same_bytes(got, want));

  // An update keeps every address that the graph knows.
  Problem other = p;
  LayerWeights doubled = CudaGrouped::weights(other);
  const Tensor w2 = test::random_tensor(DType::bf16, {6, 264, 136}, 999);
  doubled.experts.w2 = w2;
  ours.update_weights(doubled, stream());
  graph.launch(stream());
  const Tensor after = down(y), expected = run_on_gpu(ours, two);
  EXPECT_TRUE(test::same_bytes(after, expected));
  EXPECT_GT(error(after, got), 0.1);
}

TEST_F(CudaGrouped, MisuseIsAnErrorWithTheValues) {
  const Problem p = problem({6, 2, 264, 136}, DType::bf16, 8);
  MoeLayer ours = layer(p, stream(), kPart);
  const Call in = call(p, 4, 6, 31);
  const Tensor ids = up(in.ids), weights = up(in.weights);
  const Tensor y = poisoned(DType::bf16, {4, 264});
  Workspace workspace(stream().device);
  // Host memory where the GPU's is expected.
  EXPECT_THROW(ours.run({.hidden_states = in.x, .routing = Routing{ids, weights}}, y, workspace, stream()), Error);
  // A host workspace.
  Workspace host;
  EXPECT_THROW(ours.run({.hidden_states = up(in.x), .routing = Routing{ids, weights}}, y, host, stream()), Error);
  Problem checked = p;
  checked.moe.checked = true;
  MoeLayer strict = layer(checked, stream(), kPart);
  in.ids.as<std::int32_t>()[3] = 77;
  try {
    strict.run({.hidden_states = up(in.x), .routing = Routing{up(in.ids), weights}}, y, workspace, stream());
    FAIL() << "id 77 of 6 experts was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("77"), std::string::npos) << error.what();
  }
  // Unchecked, it is an empty slot and no illegal access.
  EXPECT_NO_THROW(run_on_gpu(ours, in));
}

}  // namespace
}  // namespace conclave
