// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The grouped parts of the GPU against the plain CPU part on the same weights, ids and router weights: every width of
// tile, odd sizes, empty and hot experts, empty slots; equal bits on each run, in graphs, and whatever else is in the
// batch. Each test runs for each part that takes the GPU.
#include <gtest/gtest.h>

#include "experts/cuda/gpu_layers.hpp"

namespace conclave {
namespace {

class CudaGrouped : public test::GpuLayers, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    GpuLayers::SetUp();
    if (IsSkipped()) return;
    const Support support = builtin_registry().experts.find(part())->supports(problem({2, 1, 8, 8}, DType::bf16, 1));
    if (!support) GTEST_SKIP() << support.reason();
  }
  static const char* part() { return GetParam(); }
};

TEST_P(CudaGrouped, EveryWidthOfTile) {
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const std::int64_t tokens : {1, 5, 24, 70, 190, 400, 1100})
      expect_close(part(), problem({6, 2, 264, 136}, dtype, tokens), tokens, 6, "even");
}

TEST_P(CudaGrouped, HotAndEmptyExperts) {
  for (const std::int64_t tokens : {3, 150, 700})
    expect_close(part(), problem({40, 3, 128, 64}, DType::bf16, tokens), tokens, 1, "one");
}

TEST_P(CudaGrouped, SizesThatNothingDivides) {
  for (const std::int64_t tokens : {2, 300}) {
    expect_close(part(), problem({3, 2, 67, 45}, DType::bf16, tokens), tokens, 3, "odd");
    expect_close(part(), problem({3, 2, 8, 8}, DType::bf16, tokens), tokens, 3, "tiny");
  }
}

TEST_P(CudaGrouped, DeepRowsGoInPairsOfBlocks) {
  // Sorted rows, 192-row tiles, two blocks that share weights; the second has few rows, or none.
  for (const std::int64_t tokens : {1030, 1200})
    expect_close(part(), problem({2, 1, 4096, 72}, DType::bf16, tokens), tokens, 2, "deep");
}

TEST_P(CudaGrouped, FullTilesHaveTokensAsRows) {
  // 1100 rows for each expert, or all slots for one: pairs of blocks with full halves, with one that is not full, with
  // one that has 64 rows or fewer, and with none; weights that are no multiple of 256 rows.
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const std::int64_t hot : {1, 2})
      expect_close(part(), problem({2, 2, 264, 136}, dtype, 1100), 1100, hot, "full");
  Problem biased = problem({2, 2, 136, 72}, DType::bf16, 1200);
  biased.moe.has_w13_bias = biased.moe.has_w2_bias = true;
  expect_close(part(), biased, 1200, 2, "biased");
}

TEST_P(CudaGrouped, EveryActivationAndBias) {
  expect_every_activation(part());
}

TEST_P(CudaGrouped, ARowsBitsDoNotDependOnTheBatch) {
  expect_batch_invariance(part());
  // Two experts get so many rows that tokens become the other operand.
  expect_batch_invariance(part(), {2, 2, 264, 136});
}

TEST_P(CudaGrouped, AGraphReplaysWithOtherRoutingAndOtherWeights) {
  const Problem p = problem({6, 2, 264, 136}, DType::bf16, 90);
  MoeLayer ours = layer(p, stream(), part());
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

TEST_P(CudaGrouped, MisuseIsAnErrorWithTheValues) {
  const Problem p = problem({6, 2, 264, 136}, DType::bf16, 8);
  MoeLayer ours = layer(p, stream(), part());
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
  MoeLayer strict = layer(checked, stream(), part());
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

TEST_P(CudaGrouped, NoTokensAreNothingToDo) {
  const Problem p = problem({6, 2, 264, 136}, DType::bf16, 8);
  MoeLayer ours = layer(p, stream(), part());
  EXPECT_NO_THROW(run_on_gpu(ours, call(p, 0, 6, 1)));
}

TEST_P(CudaGrouped, RemoteExperts) {
  expect_remote_rows_to_be_zero(part());
}

TEST_P(CudaGrouped, RouterWeightOnInputIsNotAppliedAgain) {
  Problem p = problem({5, 1, 96, 48}, DType::bf16, 40);
  p.moe.apply_router_weight_on_input = true;
  expect_close(part(), p, 40, 5, "weight on input");
}

INSTANTIATE_TEST_SUITE_P(Parts, CudaGrouped,
                         ::testing::Values("experts/cuda_grouped_sm90", "experts/cuda_grouped_sm80"),
                         [](const auto& chosen) { return std::string(chosen.param).substr(21); });

}  // namespace
}  // namespace conclave
