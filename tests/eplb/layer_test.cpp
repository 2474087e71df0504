// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The whole circle on two ranks: a layer over physical experts gives what the logical experts give, each pick computed
// once in all; it is rebalanced by what was recorded, its weights move, and it still does.
#include "conclave/layer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <mutex>
#include <random>

#include "conclave/eplb.hpp"
#include "conclave/shard.hpp"
#include "support/message_of.hpp"
#include "support/tensors.hpp"

namespace conclave {
namespace {

constexpr std::int64_t kTokens = 33, kTopK = 3, kHidden = 40, kInner = 24;
constexpr EplbConfig kConfig{.num_logical = 7, .num_physical = 10, .num_ranks = 2};

Problem problem_of(std::int64_t num_experts, std::int64_t num_ranks, std::int64_t rank) {
  Problem p;
  p.moe.num_experts = num_experts;
  p.moe.top_k = kTopK;
  p.moe.hidden_size = kHidden;
  p.moe.intermediate_size = kInner;
  p.moe.max_num_tokens = kTokens;
  p.moe.dtype = p.moe.weight_dtype = DType::f32;
  p.device = cpu_facts(1);
  p.parallel = make_parallel(num_ranks, rank, 1, 0, 1, 0, 1, num_ranks > 1, All2All::none);
  return p;
}

/// Routing that prefers low experts, with an empty slot and an expert that is named twice.
struct Batch {
  Tensor x = test::random_tensor(DType::f32, {kTokens, kHidden}, 1);
  Tensor ids = Tensor(DType::i32, {kTokens, kTopK});
  Tensor weights = test::random_weights(DType::f32, kTokens, kTopK, 2);
  Tensor w13 = test::random_tensor(DType::f32, {7, 2 * kInner, kHidden}, 3, 0.2);
  Tensor w2 = test::random_tensor(DType::f32, {7, kHidden, kInner}, 4, 0.2);

  Batch() {
    std::mt19937_64 bits(5);
    for (std::int64_t i = 0; i < kTokens * kTopK; ++i)
      ids.as<std::int32_t>()[i] = static_cast<std::int32_t>(std::min(bits() % 7, bits() % 7));
    ids.as<std::int32_t>()[1] = -1;
    ids.as<std::int32_t>()[4] = ids.as<std::int32_t>()[3];
  }
};

Tensor run_layer_on(MoeLayer& layer, const Batch& b, const Tensor& ids, Stream stream) {
  Tensor out = test::poisoned_tensor(DType::f32, {kTokens, kHidden});
  Workspace workspace;
  LayerInput input;
  input.hidden_states = b.x;
  input.routing = Routing{ids, b.weights};
  layer.run(input, out, workspace, stream);
  return out;
}

Tensor logical_output(const Batch& b) {
  const auto executor = make_inline_executor();
  const Registry registry = builtin_registry();
  LayerWeights weights;
  weights.experts.w13 = b.w13;
  weights.experts.w2 = b.w2;
  MoeLayer layer(plan(problem_of(7, 1, 0), registry), registry, weights, Stream::cpu(*executor));
  return run_layer_on(layer, b, b.ids, Stream::cpu(*executor));
}

/// One rank with its slots of a placement.
class EplbRank {
 public:
  EplbRank(const Batch& batch, Communicator& comm, const char* experts) : b_(batch), comm_(comm) {
    for (std::int64_t s = 0; s < kConfig.slots_per_rank(); ++s) {
      const std::int64_t expert = now_.physical_to_logical[static_cast<std::size_t>(comm.rank() * 5 + s)];
      copy(b_.w13.view().at(expert), w13_.view().at(s));
      copy(b_.w2.view().at(expert), w2_.view().at(s));
    }
    PlanOptions options;
    options.experts = experts;
    layer_.emplace(plan(problem_of(kConfig.num_physical, 2, comm.rank()), registry_, options), registry_, weights(),
                   stream_);
  }

  /// The sum over ranks.
  Tensor run(std::int64_t* computed) {
    Tensor ids = test::poisoned_tensor(DType::i32, {kTokens, kTopK});
    choose_replicas(now_, {b_.ids, b_.weights}, std::nullopt, ids, stream_);
    load_.record(ids);
    *computed = 0;
    for (std::int64_t i = 0; i < kTokens * kTopK; ++i) {
      const std::int32_t slot = ids.as<std::int32_t>()[i];
      *computed += slot >= 0 && now_.rank_of(slot) == comm_.rank() ? 1 : 0;
    }
    const Tensor part = run_layer_on(*layer_, b_, ids, stream_);
    Tensor parts(DType::f32, {2, kTokens, kHidden});
    comm_.all_gather(part.view().data, part.view().bytes(), parts.view().data);
    Tensor sum(DType::f32, {kTokens, kHidden});
    for (std::int64_t i = 0; i < sum.view().numel(); ++i)
      sum.as<float>()[i] = parts.as<float>()[i] + parts.as<float>()[i + sum.view().numel()];
    return sum;
  }

  /// Balancedness before and after. Moves the packed weights, or the caller's and packs them again: the same result.
  std::pair<double, double> move(bool packed) {
    const std::vector<double> load = logical_load(now_, load_.physical(), comm_);
    const ExpertPlacement next = rebalance(kConfig, load, now_);
    const EplbExchange exchange = plan_exchange(kConfig, now_, next);
    if (packed) {
      exchange_weights(exchange, layer_->expert_tensors(), comm_);
    } else {
      const std::vector<TensorView> tensors{w13_.view(), w2_.view()};
      exchange_weights(exchange, tensors, comm_);
      layer_->update_weights(weights(), stream_);
    }
    const std::pair balance(balance_of(now_, load).balancedness(), balance_of(next, load).balancedness());
    now_ = next;
    load_.clear();
    return balance;
  }

 private:
  static void copy(const ConstTensorView& from, const TensorView& to) {
    std::memcpy(to.data, from.data, static_cast<std::size_t>(from.bytes()));
  }
  LayerWeights weights() const {
    LayerWeights w;
    w.experts.w13 = w13_;
    w.experts.w2 = w2_;
    return w;
  }
  const Batch& b_;
  Communicator& comm_;
  ExpertPlacement now_ = make_placement(kConfig, {0, 0, 1, 1, 2, 3, 4, 5, 6, 6});
  Tensor w13_ = Tensor(DType::f32, {5, 2 * kInner, kHidden});
  Tensor w2_ = Tensor(DType::f32, {5, kHidden, kInner});
  EplbLoad load_{kConfig.num_physical, 4};
  std::unique_ptr<Executor> executor_ = make_inline_executor();
  Stream stream_ = Stream::cpu(*executor_);
  Registry registry_ = builtin_registry();
  std::optional<MoeLayer> layer_;
};

/// With parts that keep weights as they are, and with one that packs them.
class EplbLayer : public ::testing::TestWithParam<std::pair<const char*, bool>> {};
INSTANTIATE_TEST_SUITE_P(Parts, EplbLayer,
                         ::testing::Values(std::pair("experts/reference_standard", true),
                                           std::pair("experts/reference_standard", false), std::pair("", true),
                                           std::pair("", false)));

TEST_P(EplbLayer, EqualsTheLogicalExpertsBeforeAndAfterAMove) {
  const auto [experts, packed] = GetParam();
  const Batch batch;
  const std::vector<double> expected = test::values(logical_output(batch));
  std::mutex mutex;
  std::int64_t computed_in_all[2] = {0, 0};
  const char* part = experts;
  const bool by_packed = packed;
  run_ranks(2, [&](Communicator& comm) {
    EplbRank rank(batch, comm, part);
    std::int64_t before = 0, after = 0;
    const Tensor first = rank.run(&before);
    const auto [poor, better] = rank.move(by_packed);
    const Tensor second = rank.run(&after);
    const std::lock_guard lock(mutex);
    EXPECT_LT(test::rel_error(first, expected), 1e-6);
    EXPECT_LT(test::rel_error(second, expected), 1e-6);
    EXPECT_LT(poor, 0.85);
    EXPECT_GT(better, 0.95);
    computed_in_all[0] += before;
    computed_in_all[1] += after;
  });
  // Every pick but the empty one, once.
  EXPECT_EQ(computed_in_all[0], kTokens * kTopK - 1);
  EXPECT_EQ(computed_in_all[1], kTokens * kTopK - 1);
}

/// The layer does it all: logical ids in, replicas chosen, counted and moved inside.
struct InLayer {
  const char* prepare;
  const char* experts;
  All2All all2all;
};
constexpr InLayer kInLayer[] = {{"dispatch/no_ep", "", All2All::none},
                                {"dispatch/no_ep", "experts/reference_unfinalized", All2All::none},
                                {"dispatch/all_to_all", "", All2All::all_to_all},
                                {"dispatch/allgather_reducescatter", "", All2All::allgather_reducescatter},
                                {"dispatch/low_latency", "experts/naive_batched", All2All::low_latency}};

/// Rank r has tokens [kFirst[r], kFirst[r + 1]) where each brings its own.
constexpr std::int64_t kFirst[] = {0, 20, kTokens};

class ReplicatedLayer {
 public:
  ReplicatedLayer(const Batch& batch, Communicator& comm, const InLayer& way) : b_(batch), comm_(comm) {
    Problem p = problem_of(kConfig.num_logical, 2, comm.rank());
    if (way.all2all != All2All::none) p.parallel = make_parallel(1, 0, 1, 0, 2, comm.rank(), 1, true, way.all2all);
    p.parallel.enable_eplb = true;
    p.parallel.num_redundant_experts = kConfig.num_physical - kConfig.num_logical;
    exchanges_ = way.all2all != All2All::none;
    LayerWeights weights;
    weights.experts.w13 = b_.w13;
    weights.experts.w2 = b_.w2;
    const ShardedWeights shard = shard_weights(p.moe, weights.experts, p.parallel);
    weights.experts = shard.experts;
    PlanOptions options;
    options.experts = way.experts;
    options.prepare_finalize = way.prepare;
    const Registry registry = builtin_registry();
    layer_.emplace(plan(p, registry, options), registry, weights, stream_, &comm);
  }
  MoeLayer& layer() { return *layer_; }

  /// The whole batch's output on every rank, or its first `count` tokens of each rank only.
  Tensor run(std::int64_t most = kTokens) {
    const std::int64_t begin = exchanges_ ? kFirst[comm_.rank()] : 0;
    const std::int64_t end = exchanges_ ? kFirst[comm_.rank() + 1] : kTokens;
    const std::int64_t count = std::min(most, end - begin);
    Tensor own = test::poisoned_tensor(DType::f32, {count, kHidden});
    Workspace workspace;
    workspace.region({}, layer_->plan().workspace_bytes);
    workspace.poison();
    workspace.lock();
    LayerInput input;
    input.hidden_states = b_.x.view().narrow(0, begin, count);
    input.routing = Routing{b_.ids.view().narrow(0, begin, count), b_.weights.view().narrow(0, begin, count)};
    layer_->run(input, own, workspace, stream_);
    return own;
  }
  std::int64_t begin() const { return exchanges_ ? kFirst[comm_.rank()] : 0; }

 private:
  const Batch& b_;
  Communicator& comm_;
  bool exchanges_ = false;
  std::unique_ptr<Executor> executor_ = make_inline_executor();
  Stream stream_ = Stream::cpu(*executor_);
  std::optional<MoeLayer> layer_;
};

TEST(EplbInLayer, IsTheLayerBeforeAndAfterRebalancing) {
  const Batch batch;
  const Tensor whole = logical_output(batch);
  for (const InLayer& way : kInLayer) {
    std::string reports[2];
    run_ranks(2, [&](Communicator& comm) {
      ReplicatedLayer rank(batch, comm, way);
      const ExpertPlacement before = rank.layer().placement();
      const auto expect = [&](const Tensor& output) {
        const auto expected = test::values(whole.view().narrow(0, rank.begin(), output.view().size(0)));
        EXPECT_LT(test::rel_error(output, expected), 1e-6) << way.prepare;
      };
      const Tensor first = rank.run();
      expect(first);
      // Every pick goes where the token's own picks say, so fewer tokens beside it change nothing.
      EXPECT_TRUE(test::same_bytes(rank.run(5), first.view().narrow(0, 0, 5))) << way.prepare;
      reports[comm.rank()] = rank.layer().rebalance();
      EXPECT_NE(rank.layer().placement(), before) << way.prepare;
      const Tensor second = rank.run();
      expect(second);
      // Rows come home one by one and are added in the order of k, wherever they were computed.
      if (way.all2all == All2All::low_latency) {
        EXPECT_TRUE(test::same_bytes(second, first));
      }
    });
    EXPECT_EQ(reports[0], reports[1]);
    EXPECT_NE(reports[0].find("7 in 10 slots on 2 ranks"), std::string::npos) << reports[0];
    EXPECT_NE(reports[0].find("after: "), std::string::npos) << reports[0];
  }
}

TEST(EplbInLayer, WhatMakesNoSenseIsRefused) {
  const Registry registry = builtin_registry();
  const auto message = [&](auto&& change) {
    Problem p = problem_of(kConfig.num_logical, 2, 0);
    p.parallel.enable_eplb = true;
    p.parallel.num_redundant_experts = 3;
    change(p);
    return test::message_of([&] { plan(p, registry); });
  };
  EXPECT_EQ(message([](Problem&) {}), "no error");
  EXPECT_THAT(message([](Problem& p) { p.parallel.num_redundant_experts = 2; }),
              ::testing::HasSubstr("num_physical 9 over 2 ranks"));
  EXPECT_THAT(message([](Problem& p) { p.parallel.enable_eplb = false; }),
              ::testing::HasSubstr("num_redundant_experts: given 3 without enable_eplb"));
  EXPECT_THAT(message([](Problem& p) { p.parallel.placement = Placement::round_robin; }),
              ::testing::HasSubstr("enable_eplb: given with round_robin placement"));
  EXPECT_THAT(message([](Problem& p) {
                p.parallel = make_parallel(1, 0, 1, 0, 1, 0, 1, false, All2All::none), p.parallel.enable_eplb = true;
              }),
              ::testing::HasSubstr("enable_eplb: given with ep_size 1"));
}

}  // namespace
}  // namespace conclave
