// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The whole layer over simulated ranks: what is added once stays added once, whoever sums.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "conclave/comm.hpp"
#include "conclave/quantise.hpp"
#include "conclave/shard.hpp"
#include "conclave/tail.hpp"
#include "kernel/layer_fixture.hpp"
#include "support/message_of.hpp"

namespace conclave {
namespace {

using test::LayerRun;
using test::LayerTensors;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr std::int64_t kLayerTokens = 11;
/// Tokens of 4 ranks, one without any, and of fewer ranks the first of them.
std::vector<std::int64_t> shares(int ranks) {
  std::vector<std::int64_t> first = {0, 5, 5, 8, kLayerTokens};
  first.resize(static_cast<std::size_t>(ranks));
  first.push_back(kLayerTokens);
  return first;
}

/// Everything that one layer can have beside its routed experts.
Problem rich_problem(DType dtype) {
  Problem p = test::small_problem(dtype);
  p.moe.num_experts = 9;
  p.moe.zero_experts = 2;
  p.moe.intermediate_size = 21;
  p.moe.shared = {13, true};
  p.moe.latent_size = 23;
  p.moe.has_w13_bias = p.moe.has_w2_bias = true;
  p.moe.routing.routed_scaling_factor = 2.5;
  p.moe.routed_scale_on_output = true;
  p.moe.max_num_tokens = kLayerTokens;
  return p;
}

Problem fused_problem(DType dtype) {
  Problem p = test::small_problem(dtype);
  p.moe.routing.num_fused_shared_experts = 1;
  p.moe.max_num_tokens = kLayerTokens;
  return p;
}

PlanOptions pinned(const std::string& prepare, const std::string& experts) {
  PlanOptions options;
  options.prepare_finalize = prepare;
  options.experts = experts;
  options.report_tokens.clear();
  return options;
}

/// What one rank of a layer needs: the whole weights cut for it.
struct LayerShard {
  Problem problem;
  ShardedWeights cut;
  std::vector<Tensor> owned;
  LayerWeights weights;
};

LayerShard shard_of(const Problem& whole, const LayerTensors& tensors, const ParallelConfig& parallel) {
  LayerShard s;
  s.problem = whole;
  s.problem.parallel = parallel;
  s.problem.moe = shard_config(whole.moe, parallel);
  s.cut = shard_weights(whole.moe, tensors.weights.experts, parallel);
  s.weights = tensors.weights;
  s.weights.experts = s.cut.experts;
  if (parallel.tp_size > 1 && whole.moe.shared.intermediate_size > 0) {
    // gate_up: the same cut as that of a routed expert.
    MoeConfig as_one = whole.moe;
    as_one.intermediate_size = whole.moe.shared.intermediate_size;
    ExpertWeights one;
    const ConstTensorView w13 = *tensors.weights.shared_w13, w2 = *tensors.weights.shared_w2;
    one.w13 = ConstTensorView(w13.data, w13.dtype, {1, w13.size(0), w13.size(1)});
    one.w2 = ConstTensorView(w2.data, w2.dtype, {1, w2.size(0), w2.size(1)});
    ShardedWeights shared = shard_weights(as_one, one, parallel);
    s.weights.shared_w13 = shared.experts.w13.at(0);
    s.weights.shared_w2 = shared.experts.w2.at(0);
    s.owned = shared.owned;
  }
  return s;
}

Tensor alone(const Problem& p, const LayerTensors& tensors, const Tensor& x, const PlanOptions& options) {
  auto executor = make_inline_executor();
  const Registry registry = builtin_registry();
  MoeLayer layer(plan(p, registry, options), registry, tensors.weights, Stream::cpu(*executor));
  return test::run_layer(layer, x).output;
}

enum class Tokens { split, all_on_each };

/// The outputs of all ranks: one behind the other if tokens are split, else of each rank.
std::vector<Tensor> over_ranks(int ranks, const Problem& p, const LayerTensors& tensors, const Tensor& x, Tokens tokens,
                               const PlanOptions& options, const std::function<ParallelConfig(int)>& parallel_of,
                               bool with_communicator = true) {
  std::vector<Tensor> outputs(static_cast<std::size_t>(ranks));
  const std::vector<std::int64_t> first = shares(ranks);
  const Registry registry = builtin_registry();
  run_ranks(ranks, [&](Communicator& c) {
    const auto r = static_cast<std::size_t>(c.rank());
    auto executor = make_inline_executor();
    const LayerShard shard = shard_of(p, tensors, parallel_of(c.rank()));
    MoeLayer layer(plan(shard.problem, registry, options), registry, shard.weights, Stream::cpu(*executor),
                   with_communicator ? &c : nullptr);
    const ConstTensorView rows =
        tokens == Tokens::split ? ConstTensorView(x).narrow(0, first[r], first[r + 1] - first[r]) : ConstTensorView(x);
    outputs[r] = test::run_layer(layer, rows).output;
  });
  return outputs;
}

std::vector<double> joined(const std::vector<Tensor>& outputs) {
  std::vector<double> all;
  for (const Tensor& t : outputs) {
    const std::vector<double> part = test::values(t);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

std::function<ParallelConfig(int)> exchange(int ranks, All2All all2all) {
  return [=](int rank) { return make_parallel(1, 0, 1, 0, ranks, rank, 1, true, all2all); };
}
std::function<ParallelConfig(int)> replicated(int ranks, bool expert_parallel) {
  return [=](int rank) { return make_parallel(ranks, rank, 1, 0, 1, 0, 1, expert_parallel, All2All::none); };
}

TEST(LayerRanks, LowLatencyHasTheBitsOfOneRank) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Problem& p : {rich_problem(dtype), fused_problem(dtype)})
      for (int ranks : {2, 4}) {
        const LayerTensors tensors = test::random_layer(p, 5);
        const Tensor x = test::random_tensor(dtype, {kLayerTokens, p.moe.hidden_size}, 6);
        const auto expected = test::values(alone(p, tensors, x, pinned("", "experts/naive_batched")));
        const auto got =
            over_ranks(ranks, p, tensors, x, Tokens::split, pinned("dispatch/low_latency", "experts/naive_batched"),
                       exchange(ranks, All2All::low_latency));
        EXPECT_EQ(joined(got), expected) << ranks << " ranks, " << name_of(dtype);
      }
}

TEST(LayerRanks, EveryExchangeIsTheLayer) {
  for (const All2All all2all : {All2All::all_to_all, All2All::allgather_reducescatter, All2All::low_latency})
    for (int ranks : {2, 3, 4}) {
      const Problem p = rich_problem(DType::f32);
      const LayerTensors tensors = test::random_layer(p, 7);
      const Tensor x = test::random_tensor(DType::f32, {kLayerTokens, p.moe.hidden_size}, 8);
      const std::string prepare = "dispatch/" + std::string(name_of(all2all));
      const auto got = over_ranks(ranks, p, tensors, x, Tokens::split, pinned(prepare, ""), exchange(ranks, all2all));
      EXPECT_LT(test::rel_error(joined(got), test::values(alone(p, tensors, x, {}))), 1e-5) << prepare;
    }
}

/// All ranks see all tokens; each has some experts, or a slice of each.
TEST(LayerRanks, PartialOutputsAreSummedOverRanks) {
  for (const bool experts_in_parallel : {true, false})
    for (int ranks : {2, 3, 4}) {
      const Problem p = rich_problem(DType::f32);
      const LayerTensors tensors = test::random_layer(p, 9);
      const Tensor x = test::random_tensor(DType::f32, {kLayerTokens, p.moe.hidden_size}, 10);
      const auto expected = test::values(alone(p, tensors, x, {}));
      const auto with =
          over_ranks(ranks, p, tensors, x, Tokens::all_on_each, pinned("", ""), replicated(ranks, experts_in_parallel));
      for (const Tensor& output : with) {
        EXPECT_LT(test::rel_error(output, expected), 1e-5) << ranks << " ranks, ep " << experts_in_parallel;
        EXPECT_TRUE(test::same_bytes(output, with[0]));
      }
      // Without a communicator the caller sums: zero experts and the shared expert must be in there once.
      const auto without = over_ranks(ranks, p, tensors, x, Tokens::all_on_each, pinned("", ""),
                                      replicated(ranks, experts_in_parallel), false);
      std::vector<double> sum(expected.size(), 0.0);
      for (const Tensor& output : without) {
        const std::vector<double> part = test::values(output);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
      }
      EXPECT_LT(test::rel_error(sum, expected), 1e-5) << ranks << " ranks, ep " << experts_in_parallel;
    }
}

/// The parts of the sum over ranks are not rounded: many ranks are as exact as one.
TEST(LayerRanks, PartsOfASumAreRoundedOnce) {
  Problem p = test::small_problem(DType::bf16);
  p.moe.top_k = 4;
  p.moe.max_num_tokens = 64;
  const LayerTensors tensors = test::random_layer(p, 21);
  const Tensor x = test::random_tensor(DType::bf16, {64, p.moe.hidden_size}, 22);
  for (const char* experts : {"experts/reference_standard", "experts/reference_unfinalized"}) {
    auto executor = make_inline_executor();
    const Registry registry = builtin_registry();
    MoeLayer layer(plan(p, registry, pinned("", experts)), registry, tensors.weights, Stream::cpu(*executor));
    const LayerRun one = test::run_layer(layer, x);
    const std::vector<double> exact = test::oracle_layer(p.moe, tensors.weights, x, one);
    const auto four = over_ranks(4, p, tensors, x, Tokens::all_on_each, pinned("", experts), replicated(4, true));
    EXPECT_LT(test::rel_error(four[0], exact), 1.1 * test::rel_error(one.output, exact)) << experts;
  }
}

/// run_open() and an all-reducing tail; counts the ranks that bring a shared output.
Tensor tail_over_ranks(int ranks, const Problem& p, const LayerTensors& tensors, const Tensor& x,
                       const PlanOptions& options, const std::function<ParallelConfig(int)>& parallel_of,
                       std::atomic<int>& owners) {
  const Registry registry = builtin_registry();
  const Tensor weight = test::random_tensor(p.moe.dtype, {p.moe.hidden_size}, 31);
  std::vector<Tensor> normed(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](Communicator& c) {
    auto executor = make_inline_executor();
    const Stream stream = Stream::cpu(*executor);
    const LayerShard shard = shard_of(p, tensors, parallel_of(c.rank()));
    MoeLayer layer(plan(shard.problem, registry, options), registry, shard.weights, stream, &c);
    Workspace workspace;
    TailInput input;
    input.moe = layer.run_open({.hidden_states = x}, workspace, stream);
    if (input.moe.shared_output) ++owners;
    input.residual = x.view();
    input.norm_weight = weight;
    const std::int64_t m = x.view().size(0);
    const test::PoisonedArena memory([&](Arena& a) {
      plan_tail_scratch(a, m, p.moe.hidden_size);
      CommunicatorAllReduce::plan_scratch(c, a, m, p.moe.hidden_size);
    });
    Arena arena = memory.arena();
    const CommunicatorAllReduce sum(c, arena, m, p.moe.hidden_size);
    const AllReduceInPlace all_reduce(sum);
    input.all_reduce = &all_reduce;
    Tensor& out = normed[static_cast<std::size_t>(c.rank())];
    out = test::poisoned_tensor(DType::f32, {m, p.moe.hidden_size});
    TailOutput output;
    output.normed = out.view();
    run_tail({}, input, output, arena, stream);
  });
  for (const Tensor& out : normed) EXPECT_TRUE(test::same_bytes(out, normed[0]));
  return normed[0];
}

TEST(LayerRanks, AnOpenOutputBringsTheSharedExpertOnce) {
  Problem p = test::small_problem();
  p.moe.max_num_tokens = kLayerTokens;
  p.moe.intermediate_size = 21;
  p.moe.shared = {13, true};
  p.moe.routing.routed_scaling_factor = 2.5;
  p.moe.routed_scale_on_output = true;
  const LayerTensors tensors = test::random_layer(p, 23);
  const Tensor x = test::random_tensor(DType::f32, {kLayerTokens, p.moe.hidden_size}, 24);
  for (const char* experts : {"experts/reference_standard", "experts/reference_unfinalized"})
    for (const bool experts_in_parallel : {true, false}) {
      std::atomic<int> owners = 0;
      const Tensor one = tail_over_ranks(1, p, tensors, x, pinned("", experts), replicated(1, true), owners);
      EXPECT_EQ(owners.exchange(0), 1);
      const Tensor four =
          tail_over_ranks(4, p, tensors, x, pinned("", experts), replicated(4, experts_in_parallel), owners);
      // Slices of it are summed like anything else; a whole one must come from one rank.
      EXPECT_EQ(owners, experts_in_parallel ? 1 : 4);
      EXPECT_LT(test::rel_error(four, test::values(one)), 1e-5) << experts << " ep " << experts_in_parallel;
    }
}

/// Tensor parallelism of quantised weights, cut inside the groups that share a scale.
TEST(LayerRanks, CutsInsideGroupsOfScalesGiveTheLayerOfOneRank) {
  struct Cut {
    QuantKey key;
    std::int64_t intermediate_size;
    int ranks;
    const char* note;
    W13Layout layout = W13Layout::gate_up;
    bool split = false;
  };
  const Cut cuts[] = {{QuantKey::fp8_block128, 300, 3, "fp8_block128 decoded to f32"},
                      {QuantKey::int4_group128, 256, 4, "int4_group128 as int4_group64", W13Layout::interleaved},
                      {QuantKey::mxfp4, 96, 2, "mxfp4 decoded to bf16"},
                      {QuantKey::fp8_tensor, 37, 3, "", W13Layout::interleaved, true}};
  for (const Cut& cut : cuts) {
    Problem p = test::small_problem();
    p.moe.hidden_size = 128;
    p.moe.intermediate_size = cut.intermediate_size;
    p.moe.w13_layout = cut.layout;
    p.moe.has_w13_bias = p.moe.has_w2_bias = true;
    LayerTensors tensors = test::random_layer(p, 25);
    const QuantisedExperts coded = quantise_experts(p.moe, cut.key, tensors.weights.experts, cut.split);
    tensors.weights.experts = coded.weights(tensors.weights.experts);
    p.quant.weights = cut.key;
    const Tensor x = test::random_tensor(DType::f32, {kLayerTokens, p.moe.hidden_size}, 26);
    const auto expected = test::values(alone(p, tensors, x, {}));
    const Registry registry = builtin_registry();
    run_ranks(cut.ranks, [&](Communicator& c) {
      auto executor = make_inline_executor();
      Problem whole = p;
      whole.parallel = replicated(cut.ranks, false)(c.rank());
      const ShardedWeights shard = shard_weights(whole, tensors.weights.experts);
      LayerWeights weights = tensors.weights;
      weights.experts = shard.experts;
      MoeLayer layer(plan(shard_problem(whole), registry), registry, weights, Stream::cpu(*executor), &c);
      EXPECT_THAT(layer.plan().report(), HasSubstr(cut.note));
      EXPECT_LT(test::rel_error(test::run_layer(layer, x).output, expected), 1e-5) << name_of(cut.key);
    });
  }
}

TEST(LayerRanks, InterleavedAndUngatedWeightsAreCutByWidthToo) {
  for (int kind = 0; kind < 3; ++kind) {
    Problem p = test::small_problem();
    p.moe.max_num_tokens = kLayerTokens;
    p.moe.intermediate_size = 17;
    p.moe.has_w13_bias = true;
    if (kind == 0) p.moe.w13_layout = W13Layout::interleaved;
    if (kind == 1) p.moe.w13_layout = W13Layout::up_gate;
    if (kind == 2) p.moe.activation = Activation::relu2_no_mul;
    const LayerTensors tensors = test::random_layer(p, 11);
    const Tensor x = test::random_tensor(DType::f32, {kLayerTokens, p.moe.hidden_size}, 12);
    const auto got = over_ranks(3, p, tensors, x, Tokens::all_on_each, pinned("", ""), replicated(3, false));
    EXPECT_LT(test::rel_error(got[1], test::values(alone(p, tensors, x, {}))), 1e-5) << kind;
  }
}

TEST(LayerRanks, RanksThatDisagreeAllSayAboutWhat) {
  const Problem p = test::small_problem();
  const LayerTensors tensors = test::random_layer(p, 13);
  const Registry registry = builtin_registry();
  std::vector<std::string> messages(3, "no error");
  test::message_of([&] {
    run_ranks(3, [&](Communicator& c) {
      auto executor = make_inline_executor();
      Problem mine = p;
      if (c.rank() == 1) mine.moe.top_k = 2;
      if (c.rank() == 2) mine.moe.activation_params.limit = 7.0;
      const LayerShard shard = shard_of(mine, tensors, exchange(3, All2All::all_to_all)(c.rank()));
      messages[static_cast<std::size_t>(c.rank())] = test::message_of([&] {
        MoeLayer(plan(shard.problem, registry, pinned("", "")), registry, shard.weights, Stream::cpu(*executor), &c);
      });
    });
  });
  for (const std::string& message : messages)
    EXPECT_EQ(message,
              "ranks disagree about the configuration: top_k: 3 on rank 0, 2 on rank 1; "
              "activation_params.limit: default on rank 0, 7 on rank 2");
}

TEST(LayerRanks, AnotherExpertMapThanThePlacementIsRefused) {
  const Problem p = test::small_problem();
  const LayerTensors tensors = test::random_layer(p, 14);
  const Registry registry = builtin_registry();
  const std::string message = test::message_of([&] {
    run_ranks(2, [&](Communicator& c) {
      auto executor = make_inline_executor();
      LayerShard shard = shard_of(p, tensors, exchange(2, All2All::all_to_all)(c.rank()));
      ParallelConfig other = shard.problem.parallel;
      other.placement = Placement::round_robin;
      const Tensor map = expert_map_tensor(p.moe, other);
      shard.weights.expert_map = ConstTensorView(map);
      MoeLayer(plan(shard.problem, registry, pinned("", "")), registry, shard.weights, Stream::cpu(*executor), &c);
    });
  });
  EXPECT_THAT(message, AllOf(HasSubstr("expert_map["), HasSubstr("linear placement over 2 ranks")));
}

TEST(LayerRanks, ACommunicatorOfOtherSizeIsRefused) {
  const Problem p = test::small_problem();
  const LayerTensors tensors = test::random_layer(p, 15);
  const Registry registry = builtin_registry();
  const auto self = make_self_communicator();
  auto executor = make_inline_executor();
  const LayerShard shard = shard_of(p, tensors, replicated(2, true)(0));
  EXPECT_THAT(test::message_of([&] {
                MoeLayer(plan(shard.problem, registry, pinned("", "")), registry, shard.weights, Stream::cpu(*executor),
                         self.get());
              }),
              HasSubstr("communicator: rank 0 of 1, expected rank 0 of 2"));
}

TEST(LayerRanks, ThePlanSaysWhoSums) {
  const Registry registry = builtin_registry();
  Problem p = rich_problem(DType::f32);
  p.parallel = exchange(4, All2All::low_latency)(1);
  const Plan exchanged = plan(p, registry, pinned("", ""));
  EXPECT_EQ(exchanged.prepare_finalize.chosen, "dispatch/low_latency");
  EXPECT_THAT(exchanged.owners, Contains("sum over 4 ranks: finalize"));
  EXPECT_THAT(exchanged.owners, Contains(HasSubstr("each rank for its own tokens, added once")));
  p.parallel = replicated(3, false)(2);
  const Plan cut = plan(p, registry, pinned("", ""));
  EXPECT_THAT(cut.owners, Contains(HasSubstr("sum over 3 ranks: layer with a communicator, in rank order")));
  EXPECT_THAT(cut.owners, Contains("bias of w2: experts of the first rank"));
}

}  // namespace
}  // namespace conclave
