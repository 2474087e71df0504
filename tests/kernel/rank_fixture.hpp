// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One problem whose tokens are spread over simulated ranks, run there and on one rank.
#pragma once

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "conclave/comm.hpp"
#include "conclave/kernel.hpp"
#include "conclave/registry.hpp"
#include "conclave/shard.hpp"
#include "support/expert_case.hpp"

namespace conclave::test {

/// Tokens of rank r are [first[r], first[r + 1]) of the whole.
struct RankCase {
  ExpertCase whole;
  std::vector<std::int64_t> first;
  Placement placement = Placement::linear;
  std::string label;

  int num_ranks() const { return static_cast<int>(first.size()) - 1; }
  std::int64_t begin(int rank) const { return first[static_cast<std::size_t>(rank)]; }
  std::int64_t count(int rank) const { return begin(rank + 1) - begin(rank); }

  /// The problem of one rank of `ranks` that exchange tokens.
  Problem problem_of(int rank, All2All all2all) const {
    Problem p = whole.problem;
    p.parallel = make_parallel(1, 0, 1, 0, num_ranks(), rank, 1, true, all2all);
    p.parallel.all2all = all2all;
    p.parallel.placement = placement;
    return p;
  }
};

/// Shapes, picks, empty and repeated slots, zero weights and the split of the tokens: everything from the seed.
inline RankCase random_rank_case(int num_ranks, DType dtype, std::uint64_t seed) {
  std::mt19937_64 bits(seed * 0x9E3779B97F4A7C15ull + 11);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(high - low + 1));
  };
  MoeConfig moe;
  moe.num_experts = pick(1, 13);
  moe.top_k = pick(1, std::min<std::int64_t>(4, moe.num_experts));
  moe.hidden_size = pick(1, 41);
  moe.intermediate_size = pick(1, 19);
  moe.dtype = moe.weight_dtype = dtype;
  moe.has_w2_bias = pick(0, 2) == 0;
  moe.apply_router_weight_on_input = moe.top_k == 1 && pick(0, 1) == 0;
  RankCase c;
  c.placement = pick(0, 1) == 0 ? Placement::linear : Placement::round_robin;
  c.first = {0};
  std::int64_t most = 0;
  for (int r = 0; r < num_ranks; ++r) {
    const std::int64_t count = pick(0, 3) == 0 ? 0 : pick(0, 7);
    most = std::max(most, count);
    c.first.push_back(c.first.back() + count);
  }
  moe.max_num_tokens = most + pick(0, 2);
  const std::int64_t tokens = c.first.back();
  c.whole = make_expert_case(moe, tokens, seed);
  for (std::int64_t i = 0; i < tokens * moe.top_k; ++i) {
    auto* ids = c.whole.topk_ids.as<std::int32_t>();
    switch (pick(0, 9)) {
      case 0:
        ids[i] = -1;
        break;
      case 1:
        ids[i] = 1000000;
        break;
      case 2:
        ids[i] = ids[i / moe.top_k * moe.top_k];
        break;
      case 3:
        c.whole.topk_weights.as<float>()[i] = 0.0f;
        break;
      default:
        break;
    }
  }
  c.label = "seed " + std::to_string(seed) + ": " + std::to_string(num_ranks) + " ranks, E " +
            std::to_string(moe.num_experts) + " k " + std::to_string(moe.top_k) + " H " +
            std::to_string(moe.hidden_size) + " M " + std::to_string(tokens) + " " + std::string(name_of(dtype)) + " " +
            std::string(name_of(c.placement));
  return c;
}

/// One kernel with poisoned memory around it.
inline void run_kernel(FusedMoeKernel& kernel, const KernelInput& input, const PackedWeights& weights,
                       const TensorView& output, Executor& executor) {
  const PoisonedArena memory([&](Arena& arena) { kernel.plan_scratch(arena, input.hidden_states.size(0)); });
  Arena arena = memory.arena();
  kernel.run(input, weights, output, arena, Stream::cpu(executor));
  if (!memory.guard_intact()) throw std::logic_error("written past the workspace");
}

inline KernelInput rows_of_case(const ExpertCase& c, std::int64_t begin, std::int64_t count) {
  KernelInput input;
  input.hidden_states = c.hidden_states.view().narrow(0, begin, count);
  input.routing = Routing{c.topk_ids.view().narrow(0, begin, count), c.topk_weights.view().narrow(0, begin, count)};
  return input;
}

/// All tokens on one rank, with `rank`'s experts only if it is not -1: its partial output.
inline Tensor run_alone(const RankCase& c, const std::string& experts, const std::string& ends, int rank = -1) {
  const Registry registry = builtin_registry();
  auto executor = make_inline_executor();
  Problem p = c.whole.problem;
  p.moe.max_num_tokens = c.first.back();
  if (rank >= 0) {
    p.parallel = make_parallel(c.num_ranks(), rank, 1, 0, 1, 0, 1, true, All2All::none);
    p.parallel.placement = c.placement;
  }
  const PartContext context{p, nullptr};
  FusedMoeKernel kernel(p, registry.prepare_finalizes.find(ends)->make(context),
                        registry.experts.find(experts)->make(context));
  const ShardedWeights weights = shard_weights(p.moe, c.whole.weights, p.parallel);
  const auto packed = kernel.experts().pack(weights.experts, Stream::cpu(*executor));
  KernelInput input = rows_of_case(c.whole, 0, c.first.back());
  const Tensor map = expert_map_tensor(p.moe, p.parallel);
  input.expert_map = ConstTensorView(map);
  Tensor output = poisoned_tensor(p.moe.dtype, {c.first.back(), p.moe.hidden_size});
  run_kernel(kernel, input, *packed, output, *executor);
  return output;
}

/// The tokens of each rank there, exchanged by `ends`; the outputs joined.
inline Tensor run_on_ranks(const RankCase& c, const std::string& experts, const std::string& ends, All2All all2all,
                           int repeats = 1) {
  const Registry registry = builtin_registry();
  Tensor output = poisoned_tensor(c.whole.moe().dtype, {c.first.back(), c.whole.moe().hidden_size});
  run_ranks(c.num_ranks(), [&](Communicator& communicator) {
    auto executor = make_inline_executor();
    const int rank = communicator.rank();
    const Problem p = c.problem_of(rank, all2all);
    const PartContext context{p, nullptr, &communicator};
    FusedMoeKernel kernel(p, registry.prepare_finalizes.find(ends)->make(context),
                          registry.experts.find(experts)->make(context));
    const ShardedWeights weights = shard_weights(p.moe, c.whole.weights, p.parallel);
    const auto packed = kernel.experts().pack(weights.experts, Stream::cpu(*executor));
    KernelInput input = rows_of_case(c.whole, c.begin(rank), c.count(rank));
    const Tensor map = expert_map_tensor(p.moe, p.parallel);
    input.expert_map = ConstTensorView(map);
    for (int i = 0; i < repeats; ++i)
      run_kernel(kernel, input, *packed, output.view().narrow(0, c.begin(rank), c.count(rank)), *executor);
  });
  return output;
}

}  // namespace conclave::test
