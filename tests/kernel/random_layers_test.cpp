// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Layers that nobody chose: ranks, exchange or none, experts, formats, shared experts, micro-batches and tail are
// drawn, and the result is that of the reference on one rank. A failure prints its seed; put it in place of the random
// one to see it again.
#include <gtest/gtest.h>

#include <random>

#include "conclave/comm.hpp"
#include "conclave/micro_batches.hpp"
#include "conclave/quantise.hpp"
#include "conclave/shard.hpp"
#include "conclave/tail.hpp"
#include "kernel/layer_fixture.hpp"
#include "support/message_of.hpp"

namespace conclave {
namespace {

using K = QuantKey;

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : bits_(seed * 0x9E3779B97F4A7C15ull + 101) {}
  std::int64_t range(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(bits_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool once_in(std::int64_t n) { return range(1, n) == 1; }
  template <class T>
  T one_of(std::initializer_list<T> list) {
    return list.begin()[range(0, static_cast<std::int64_t>(list.size()) - 1)];
  }

 private:
  std::mt19937_64 bits_;
};

enum class Spread { exchange, experts, width };

struct DrawnLayer {
  Problem whole;
  int ranks = 1;
  Spread spread = Spread::exchange;
  All2All all2all = All2All::none;
  std::string experts, prepare;
  int micro_batches = 1;
  bool tail = false;
  std::int64_t redundant = -1;      ///< Slots of experts beyond one for each; -1: no replicas.
  std::vector<std::int64_t> first;  ///< Tokens of the ranks, where they are spread.
  std::string label;

  ParallelConfig parallel(int rank) const {
    ParallelConfig p = spread == Spread::exchange
                           ? make_parallel(1, 0, 1, 0, ranks, rank, 1, true, all2all)
                           : make_parallel(ranks, rank, 1, 0, 1, 0, 1, spread == Spread::experts, All2All::none);
    p.enable_eplb = redundant >= 0;
    p.num_redundant_experts = std::max<std::int64_t>(0, redundant);
    return p;
  }
  std::int64_t num_tokens() const { return first.back(); }
};

void draw_formats(Draw& draw, DrawnLayer& d) {
  MoeConfig& c = d.whole.moe;
  c.dtype = c.weight_dtype = draw.one_of({DType::f32, DType::bf16, DType::f16});
  c.hidden_size = draw.range(1, 41);
  c.intermediate_size = draw.range(static_cast<std::int64_t>(d.ranks), 29);
  if (draw.once_in(2)) return;
  c.hidden_size = 32 * draw.range(1, 2);
  c.intermediate_size = 32 * draw.range(1, 2);
  d.whole.quant.weights = draw.one_of({K::none, K::fp8_tensor, K::fp8_block128, K::fp8_channel, K::int8_channel,
                                       K::int4_group32, K::int4_channel_zp, K::mxfp4, K::mxfp8, K::nvfp4});
  // A slice of the inner width has scales of its own.
  if (d.spread != Spread::width && draw.once_in(2))
    d.whole.quant.activations = draw.one_of({K::fp8_token, K::fp8_block128, K::mxfp8, K::int8_token});
}

void draw_layer(Draw& draw, DrawnLayer& d) {
  MoeConfig& c = d.whole.moe;
  c.num_experts = draw.range(1, 11);
  c.top_k = draw.range(1, std::min<std::int64_t>(4, c.num_experts));
  c.has_w13_bias = draw.once_in(3);
  c.has_w2_bias = draw.once_in(3);
  c.w13_layout = draw.one_of({W13Layout::gate_up, W13Layout::up_gate, W13Layout::interleaved});
  c.apply_router_weight_on_input = c.top_k == 1 && draw.once_in(2);
  c.routing = routing_preset(draw.one_of({RoutingMethod::default_, RoutingMethod::renormalize}));
  c.routing.routed_scaling_factor = draw.one_of({1.0, 2.5});
  c.routed_scale_on_output = !c.apply_router_weight_on_input && draw.once_in(2);
  if (c.apply_router_weight_on_input) c.routing.routed_scaling_factor = 1.0;
  if (d.spread != Spread::width && draw.once_in(2)) c.shared = {draw.range(1, 13), draw.once_in(2)};
  if (c.num_experts > 4 && draw.once_in(4)) c.zero_experts = 2;
  if (d.ranks > 1 && d.spread != Spread::width && draw.once_in(3)) {
    const std::int64_t experts = c.num_weight_experts();
    d.redundant = (d.ranks - experts % d.ranks) % d.ranks + d.ranks * draw.range(0, 1);
  }
  if (d.whole.quant == QuantConfig{} && draw.once_in(4)) c.latent_size = draw.range(3, 17);
}

/// The first experts, from a random one on, that fit; with the prepare/finalize of the spread.
bool draw_parts(Draw& draw, DrawnLayer& d, const Registry& registry) {
  const auto experts = registry.experts.entries();
  const auto count = static_cast<std::int64_t>(experts.size());
  const std::int64_t start = draw.range(0, count - 1);
  Problem p = d.whole;
  p.parallel = d.parallel(0);
  if (d.spread == Spread::width) p = shard_problem(p);
  for (std::int64_t i = 0; i < count; ++i) {
    PlanOptions options;
    options.experts = experts[static_cast<std::size_t>((start + i) % count)].name;
    options.report_tokens.clear();
    try {
      const Plan chosen = plan(p, registry, options);
      d.experts = options.experts;
      d.prepare = chosen.prepare_finalize.chosen;
      return true;
    } catch (const Error&) {
      continue;
    }
  }
  return false;
}

DrawnLayer drawn(std::uint64_t seed, const Registry& registry) {
  Draw draw(seed);
  DrawnLayer d;
  d.ranks = draw.one_of({1, 2, 3, 4, 8});
  d.spread = draw.one_of({Spread::exchange, Spread::exchange, Spread::experts, Spread::width});
  if (d.spread == Spread::exchange)
    d.all2all = draw.one_of({All2All::all_to_all, All2All::allgather_reducescatter, All2All::low_latency});
  draw_formats(draw, d);
  draw_layer(draw, d);
  MoeConfig& c = d.whole.moe;
  d.first = {0};
  std::int64_t most = 1;
  for (int r = 0; r < d.ranks; ++r) {
    const std::int64_t count = draw.once_in(4) ? 0 : draw.range(0, 6);
    most = std::max(most, count);
    d.first.push_back(d.first.back() + count);
  }
  c.max_num_tokens = d.spread == Spread::exchange ? most : std::max<std::int64_t>(1, d.num_tokens());
  d.whole.device = cpu_facts(1);
  d.micro_batches = draw.one_of({1, 1, 2, 3});
  d.tail = d.spread != Spread::exchange && c.latent_size == 0 && c.zero_experts == 0 && draw.once_in(2);
  EXPECT_TRUE(draw_parts(draw, d, registry)) << "nothing fits seed " << seed;
  d.label = "seed " + std::to_string(seed) + ": " + std::to_string(d.ranks) + " ranks, " + d.experts + " + " +
            d.prepare + ", " + std::string(name_of(c.dtype)) + " " + std::string(name_of(d.whole.quant.weights)) +
            " x " + std::string(name_of(d.whole.quant.activations)) + (d.tail ? ", tail" : "") +
            (d.redundant >= 0 ? ", replicas" : "");
  return d;
}

/// Weights of the whole, quantised if that is drawn.
struct DrawnWeights {
  test::LayerTensors plain;
  QuantisedExperts coded;
  LayerWeights weights;
  Tensor x, norm;

  DrawnWeights(const DrawnLayer& d, std::uint64_t seed) : plain(test::random_layer(d.whole, seed)) {
    weights = plain.weights;
    if (d.whole.quant.weights != K::none) {
      coded = quantise_experts(d.whole.moe, d.whole.quant.weights, plain.weights.experts);
      weights.experts = coded.weights(plain.weights.experts);
    }
    x = test::random_tensor(d.whole.moe.dtype, {d.num_tokens(), d.whole.moe.hidden_size}, seed + 40);
    norm = test::random_tensor(d.whole.moe.dtype, {d.whole.moe.hidden_size}, seed + 41);
  }
};

void run_with_tail(MoeLayer& layer, const ConstTensorView& x, const ConstTensorView& norm, const TensorView& normed,
                   Communicator* c, Stream stream) {
  Workspace workspace;
  workspace.region({}, layer.open_workspace_bytes());
  workspace.poison();
  TailInput input;
  input.moe = layer.run_open({.hidden_states = x}, workspace, stream);
  input.residual = x;
  input.norm_weight = norm;
  const std::int64_t m = x.size(0), h = x.size(1);
  const test::PoisonedArena memory([&](Arena& a) {
    plan_tail_scratch(a, m, h);
    if (c != nullptr) CommunicatorAllReduce::plan_scratch(*c, a, m, h);
  });
  Arena arena = memory.arena();
  TailOutput output;
  output.normed = normed;
  if (c == nullptr) return run_tail({}, input, output, arena, stream);
  const CommunicatorAllReduce sum(*c, arena, m, h);
  const AllReduceInPlace all_reduce(sum);
  input.all_reduce = &all_reduce;
  run_tail({}, input, output, arena, stream);
}

Tensor run_reference(const DrawnLayer& d, const DrawnWeights& w, const Registry& registry) {
  auto executor = make_inline_executor();
  const Stream stream = Stream::cpu(*executor);
  Problem p = d.whole;
  p.moe.max_num_tokens = std::max<std::int64_t>(1, d.num_tokens());
  PlanOptions options;
  options.experts = "experts/reference_standard";
  MoeLayer layer(plan(p, registry, options), registry, w.weights, stream);
  if (!d.tail) return test::run_layer(layer, w.x).output;
  Tensor normed = test::poisoned_tensor(DType::f32, {d.num_tokens(), d.whole.moe.hidden_size});
  run_with_tail(layer, w.x, w.norm, normed, nullptr, stream);
  return normed;
}

void run_rows(MoeLayer& layer, const DrawnLayer& d, const ConstTensorView& x, const TensorView& output, Stream stream) {
  Workspace workspace;
  if (d.micro_batches == 1) {
    workspace.region({}, layer.plan().workspace_bytes);
    workspace.poison();
    return layer.run({.hidden_states = x}, output, workspace, stream);
  }
  MicroBatches batches(d.micro_batches);
  run_micro_batched(layer, {.hidden_states = x}, output, workspace, stream, batches);
}

Tensor run_drawn(const DrawnLayer& d, const DrawnWeights& w, const Registry& registry) {
  const MoeConfig& moe = d.whole.moe;
  Tensor output = test::poisoned_tensor(d.tail ? DType::f32 : moe.dtype, {d.num_tokens(), moe.hidden_size});
  run_ranks(d.ranks, [&](Communicator& c) {
    auto executor = make_inline_executor();
    const Stream stream = Stream::cpu(*executor);
    Problem p = d.whole;
    p.parallel = d.parallel(c.rank());
    const ShardedWeights shard = shard_weights(p, w.weights.experts);
    LayerWeights weights = w.weights;
    weights.experts = shard.experts;
    PlanOptions options;
    options.experts = d.experts;
    options.prepare_finalize = d.prepare;
    MoeLayer layer(plan(shard_problem(p), registry, options), registry, weights, stream, &c);
    const auto r = static_cast<std::size_t>(c.rank());
    const bool exchanges = d.spread == Spread::exchange;
    const std::int64_t begin = exchanges ? d.first[r] : 0;
    const std::int64_t count = exchanges ? d.first[r + 1] - begin : d.num_tokens();
    const ConstTensorView x = w.x.view().narrow(0, begin, count);
    // Where all ranks have the same result, the last one's is looked at.
    Tensor own = test::poisoned_tensor(output.view().dtype, {count, moe.hidden_size});
    const auto run = [&] {
      if (d.tail)
        run_with_tail(layer, x, w.norm, own, &c, stream);
      else
        run_rows(layer, d, x, own, stream);
    };
    run();
    // Once more with the experts elsewhere, where the part's weights can move.
    if (d.redundant >= 0 && test::message_of([&] { layer.expert_tensors(); }) == "no error") {
      layer.rebalance();
      run();
    }
    if (exchanges || c.rank() + 1 == d.ranks)
      std::copy_n(own.as<std::byte>(), own.view().bytes(), output.view().narrow(0, begin, count).as<std::byte>());
  });
  return output;
}

TEST(RandomLayers, AreThoseOfTheReferenceOnOneRank) {
  const std::uint64_t base = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(base));
  const Registry registry = builtin_registry();
  for (std::uint64_t seed = base; seed < base + 200 && !HasFailure(); ++seed) {
    const DrawnLayer d = drawn(seed, registry);
    const DrawnWeights w(d, seed);
    const bool exact = d.whole.moe.dtype == DType::f32 && d.whole.quant.activations == K::none;
    // A part of a row is rounded on each rank, and a value half-way between two codes may go either way.
    EXPECT_LT(test::rel_error(run_drawn(d, w, registry), test::values(run_reference(d, w, registry))),
              exact ? 1e-5 : 1.2e-2)
        << d.label;
  }
}

}  // namespace
}  // namespace conclave
