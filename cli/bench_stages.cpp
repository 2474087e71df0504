// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Router: the part alone. Routed: a layer without shared expert that is given ids. Shared: the plan of the shared
// expert as a layer of its own.
#include "bench_stages.hpp"

#include "bench_weights.hpp"

namespace conclave::cli {
namespace {

Timing time_router(const StageInput& in, const Draws& draws, std::optional<ConstTensorView> bias, Stream stream) {
  const auto router = in.registry.routers.find(in.plan.router.chosen)->make(PartContext{in.plan.problem, nullptr});
  const std::int64_t num_tokens = draws.ids.view().size(1);
  const Tensor ids(DType::i32, {num_tokens, draws.ids.view().size(2)});
  const Tensor weights(DType::f32, {num_tokens, draws.ids.view().size(2)});
  Arena sizes = Arena::measuring();
  router->plan_scratch(sizes, num_tokens);
  Workspace workspace;
  const std::span<std::byte> region = workspace.region({}, sizes.peak());
  return measure(in.timing, draws.size(), [&](std::int64_t draw) {
    RouterInput input;
    input.logits = draws.logits.view().at(draw);
    input.e_score_correction_bias = bias;
    Arena arena(region, {});
    router->route(input, {ids, weights}, arena, stream);
  });
}

/// A layer that is given ids and weights for every run.
Timing time_layer(MoeLayer& layer, const StageInput& in, std::int64_t num_tokens, std::int64_t num_draws,
                  const std::function<Routing(std::int64_t)>& routing, Stream stream) {
  const ConstTensorView hidden = in.hidden_states.narrow(0, 0, num_tokens);
  const Tensor output(hidden.dtype, {num_tokens, hidden.size(1)});
  Workspace workspace;
  return measure(in.timing, num_draws, [&](std::int64_t draw) {
    LayerInput input;
    input.hidden_states = hidden;
    input.routing = routing(draw);
    layer.run(input, output, workspace, stream);
  });
}

void time_routed(const StageInput& in, const std::vector<std::int64_t>& tokens, Stream stream,
                 std::map<std::int64_t, StageTimes>& times) {
  Problem problem = in.plan.problem;
  problem.moe.shared = {};
  PlanOptions pins;
  pins.experts = in.plan.experts.chosen;
  pins.prepare_finalize = in.plan.prepare_finalize.chosen;
  LayerWeights weights = in.weights();
  weights.shared_w13.reset();
  weights.shared_w2.reset();
  weights.shared_gate.reset();
  weights.router_weight.reset();
  weights.router_bias.reset();
  MoeLayer layer(plan(problem, in.registry, pins), in.registry, std::move(weights), stream);
  for (const std::int64_t m : tokens) {
    const Draws& draws = in.draws.at(m);
    times[m].routed = time_layer(
        layer, in, m, draws.size(),
        [&](std::int64_t draw) {
          return Routing{draws.ids.view().at(draw), draws.weights.view().at(draw)};
        },
        stream);
  }
}

void time_shared(const StageInput& in, const std::vector<std::int64_t>& tokens, Stream stream,
                 std::map<std::int64_t, StageTimes>& times) {
  const LayerWeights all = in.weights();
  const auto with_leading_one = [](const ConstTensorView& view) {
    return ConstTensorView(view.data, view.dtype, {1, view.size(0), view.size(1)});
  };
  LayerWeights weights;
  weights.experts.w13 = with_leading_one(*all.shared_w13);
  weights.experts.w2 = with_leading_one(*all.shared_w2);
  weights.keep_alive = all.keep_alive;
  MoeLayer layer(*in.plan.shared, in.registry, std::move(weights), stream);
  for (const std::int64_t m : tokens) {
    const Tensor ids(DType::i32, {m, 1});  // zeroed: expert 0
    const Tensor ones(DType::f32, {m, 1});
    std::fill_n(ones.as<float>(), m, 1.0F);
    times[m].shared = time_layer(
        layer, in, m, 1,
        [&](std::int64_t) {
          return Routing{ids, ones};
        },
        stream);
  }
}

}  // namespace

std::map<std::int64_t, StageTimes> time_stages(const StageInput& in, const std::vector<std::int64_t>& tokens,
                                               Stream stream) {
  std::map<std::int64_t, StageTimes> times;
  const std::optional<ConstTensorView> bias =
      in.plan.problem.moe.routing.has_bias ? in.weights().e_score_correction_bias : std::nullopt;
  const auto* experts = in.registry.experts.find(in.plan.experts.chosen);
  for (const std::int64_t m : tokens) times[m].router = time_router(in, in.draws.at(m), bias, stream);
  if (experts != nullptr && !experts->monolithic) time_routed(in, tokens, stream, times);
  if (in.plan.shared != nullptr) time_shared(in, tokens, stream, times);
  return times;
}

}  // namespace conclave::cli
