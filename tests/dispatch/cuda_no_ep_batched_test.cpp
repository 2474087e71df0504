// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The batched prepare and finalize on a GPU against the ones on the CPU: the same counts, the same rows in the same
// order, and, through experts that change nothing, the same bits at the end.
#include <gtest/gtest.h>

#include "dispatch/dispatch_list.hpp"
#include "support/expert_case.hpp"
#include "support/gpu.hpp"

namespace conclave {
namespace {

using test::ExpertCase;
using test::make_expert_case;
using test::same_bytes;

struct BatchedRun {
  Tensor rows, counts, output;
};

class CudaNoEpBatched : public test::OnGpu {
 protected:
  static Problem problem_on(const ExpertCase& c, Device device) {
    Problem p = c.problem;
    p.device.device = device;
    return p;
  }

  /// Ids with empty, stale and doubled ones among them, mostly of one expert.
  static ExpertCase strange_case(MoeConfig moe, std::int64_t tokens, std::uint64_t seed) {
    ExpertCase c = make_expert_case(moe, tokens, seed);
    std::uint64_t state = seed + 1;
    for (std::int64_t i = 0; i < c.topk_ids.view().numel(); ++i) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      const auto roll = static_cast<std::int32_t>((state >> 33) % 20);
      std::int32_t& id = c.topk_ids.as<std::int32_t>()[i];
      if (roll == 0) id = -1;
      if (roll == 1) id = static_cast<std::int32_t>(moe.num_experts) + 3;
      if (roll > 12) id = 2;
    }
    return c;
  }

  PrepareInput input_of(const ExpertCase& c, const ConstTensorView& x, const Routing& routing,
                        std::optional<ConstTensorView> map) const {
    PrepareInput input;
    input.hidden_states = x;
    input.routing = routing;
    input.expert_map = map;
    input.apply_router_weight_on_input = c.moe().apply_router_weight_on_input;
    return input;
  }

  /// What prepare made is given to finalize as it is.
  void run(ModularPrepareFinalize& part, const PrepareInput& input, Arena& arena, const TensorView& output,
           Stream stream, Prepared& prepared) const {
    prepared = part.prepare(input, arena, stream);
    const ConstTensorView rows = prepared.activations;
    FinalizeInput last;
    last.expert_output.kind = ExpertOutputKind::unreduced_batched;
    last.expert_output.rows =
        TensorView(const_cast<void*>(rows.data), rows.dtype, {rows.size(0), rows.size(1), rows.size(2)}, rows.device);
    last.routing = input.routing;
    last.expert_map = input.expert_map;
    last.router_weight_applied = input.apply_router_weight_on_input;
    last.weight_and_reduce = &weight_and_reduce(WeightAndReduceKind::delegate);
    part.finalize(last, output, stream);
  }

  BatchedRun on_cpu(const ExpertCase& c) const {
    const auto part = test::make_dispatch<ModularPrepareFinalize>("dispatch/no_ep_batched", problem_on(c, Device{}));
    const std::int64_t tokens = c.hidden_states.view().size(0);
    const test::PoisonedArena memory([&](Arena& arena) { part->plan_scratch(arena, tokens); });
    Arena arena = memory.arena();
    BatchedRun r;
    r.output = test::poisoned_tensor(c.moe().dtype, {tokens, c.moe().hidden_size});
    Prepared prepared;
    const auto executor = make_executor(2);
    run(*part, input_of(c, c.hidden_states, {c.topk_ids, c.topk_weights}, c.expert_map), arena, r.output,
        Stream::cpu(*executor), prepared);
    r.rows = copy_of(prepared.activations, Stream::cpu(*executor));
    r.counts = copy_of(prepared.expert_tokens->counts, Stream::cpu(*executor));
    return r;
  }

  BatchedRun on_gpu(const ExpertCase& c) const {
    const auto part =
        test::make_dispatch<ModularPrepareFinalize>("dispatch/cuda_no_ep_batched", problem_on(c, stream().device));
    const std::int64_t tokens = c.hidden_states.view().size(0);
    Arena measure = Arena::measuring(stream().device);
    part->plan_scratch(measure, tokens);
    Workspace workspace(stream().device);
    Arena arena(workspace.region({}, measure.peak()), stream().device);
    workspace.poison();
    const Tensor x = up(c.hidden_states), ids = up(c.topk_ids), weights = up(c.topk_weights);
    Tensor map;
    if (c.expert_map) map = up(*c.expert_map);
    const Tensor output = poisoned(c.moe().dtype, {tokens, c.moe().hidden_size});
    Prepared prepared;
    run(*part, input_of(c, x, {ids, weights}, map ? std::optional<ConstTensorView>(map) : std::nullopt), arena, output,
        stream(), prepared);
    EXPECT_EQ(prepared.expert_tokens->host_counts, nullptr);
    return {copy_of(prepared.activations, stream()), copy_of(prepared.expert_tokens->counts, stream()), down(output)};
  }

  static Tensor copy_of(const ConstTensorView& view, Stream stream) {
    const Tensor host(view.dtype, std::span(view.shape.data(), static_cast<std::size_t>(view.rank)));
    copy(view, host, stream);
    return host;
  }

  void expect_same(const ExpertCase& c, const char* what) const {
    const BatchedRun want = on_cpu(c), got = on_gpu(c);
    ASSERT_TRUE(same_bytes(got.counts, want.counts)) << what;
    const TensorView rows = got.rows;
    for (std::int64_t e = 0; e < rows.size(0); ++e) {
      const std::int64_t count = want.counts.as<std::int32_t>()[e];
      ASSERT_TRUE(same_bytes(rows.at(e).narrow(0, 0, count), want.rows.view().at(e).narrow(0, 0, count)))
          << what << ", expert " << e;
      for (const double value : test::values(rows.at(e).narrow(0, count, rows.size(1) - count)))
        ASSERT_TRUE(std::isnan(value)) << what << ", a row behind the count of expert " << e;
    }
    EXPECT_TRUE(same_bytes(got.output, want.output)) << what;
  }
};

TEST_F(CudaNoEpBatched, PlacesAndReducesAsTheCpuDoes) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const std::int64_t width : {19, 64})
      for (const std::int64_t tokens : {1, 31, 2500}) {
        MoeConfig moe = test::small_config(dtype);
        moe.hidden_size = width;
        moe.max_num_tokens = tokens;
        expect_same(strange_case(moe, tokens, 3), "strange ids");
      }
}

TEST_F(CudaNoEpBatched, ManyExperts) {
  MoeConfig moe = test::small_config(DType::bf16);
  moe.num_experts = 2048;
  moe.top_k = 32;
  moe.max_num_tokens = 40;
  expect_same(make_expert_case(moe, 40, 5, 1), "2048 experts");
}

TEST_F(CudaNoEpBatched, WeightsGoOnTheInput) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    MoeConfig moe = test::small_config(dtype);
    moe.top_k = 1;
    moe.hidden_size = 64;
    moe.apply_router_weight_on_input = true;
    expect_same(strange_case(moe, 50, 7), "weight on input");
  }
}

TEST_F(CudaNoEpBatched, RemoteExpertsHaveNoRows) {
  MoeConfig moe = test::small_config();
  moe.num_experts = 4;
  moe.top_k = 2;
  ExpertCase c = make_expert_case(moe, 5, 1, 2);
  c.problem.parallel = make_parallel(2, 1, 1, 0, 1, 0, 1, true, All2All::none);
  const Tensor map = test::tensor_of(DType::i32, {4}, {-1, -1, 0, 1});
  c.expert_map = ConstTensorView(map);
  c.topk_ids = test::tensor_of(DType::i32, {5, 2}, {2, 3, -1, -1, 0, -1, 1000000, 2, 4, -9});
  expect_same(c, "a map");
}

TEST_F(CudaNoEpBatched, IdsOf64Bits) {
  MoeConfig moe = test::small_config(DType::bf16);
  moe.hidden_size = 24;
  ExpertCase c = strange_case(moe, 40, 9);
  const Tensor wide(DType::i64, {40, 3});
  for (std::int64_t i = 0; i < 120; ++i) wide.as<std::int64_t>()[i] = c.topk_ids.as<std::int32_t>()[i];
  c.topk_ids = wide;
  expect_same(c, "i64");
}

TEST_F(CudaNoEpBatched, NothingAtAll) {
  MoeConfig moe = test::small_config();
  expect_same(make_expert_case(moe, 0, 1), "no tokens");
  ExpertCase c = make_expert_case(moe, 6, 1);
  std::memset(c.topk_ids.view().data, 0xFF, static_cast<std::size_t>(c.topk_ids.view().bytes()));
  expect_same(c, "no picks");
}

}  // namespace
}  // namespace conclave
