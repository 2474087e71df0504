// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The smallest use of the library: describe a layer, plan it, pack its weights, run it.
#include <cmath>
#include <cstdio>
#include <random>

#include "conclave/conclave.hpp"

namespace {

conclave::Tensor random_tensor(std::initializer_list<std::int64_t> shape, std::uint64_t seed) {
  conclave::Tensor tensor(conclave::DType::f32, shape);
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal(0.0F, 0.1F);
  for (std::int64_t i = 0; i < tensor.view().numel(); ++i) tensor.as<float>()[i] = normal(generator);
  return tensor;
}

}  // namespace

int main() {
  constexpr std::int64_t num_experts = 8, top_k = 2, hidden_size = 96, intermediate_size = 40, num_tokens = 5;

  // The problem is plain data: what to compute, and on what.
  const auto executor = conclave::make_executor();
  conclave::Problem problem;
  problem.moe.num_experts = num_experts;
  problem.moe.top_k = top_k;
  problem.moe.hidden_size = hidden_size;
  problem.moe.intermediate_size = intermediate_size;
  problem.moe.max_num_tokens = 64;
  problem.moe.dtype = conclave::DType::f32;
  problem.moe.weight_dtype = conclave::DType::f32;
  problem.moe.routing = conclave::routing_preset(conclave::RoutingMethod::renormalize);
  problem.device = conclave::cpu_facts(executor->num_threads());

  // The plan says which part was chosen for each stage, and why the others were not.
  const conclave::Registry registry = conclave::builtin_registry();
  const conclave::Plan plan = conclave::plan(problem, registry);
  std::puts(plan.report().c_str());

  // Weights are views; the layer copies them into the layout of the kernel that was chosen.
  const auto router = random_tensor({num_experts, hidden_size}, 1);
  const auto w13 = random_tensor({num_experts, 2 * intermediate_size, hidden_size}, 2);
  const auto w2 = random_tensor({num_experts, hidden_size, intermediate_size}, 3);
  conclave::LayerWeights weights;
  weights.router_weight = router;
  weights.experts.w13 = w13;
  weights.experts.w2 = w2;
  const auto stream = conclave::Stream::cpu(*executor);
  conclave::MoeLayer layer(plan, registry, weights, stream);

  // run() takes its memory from a workspace. Locked, it cannot grow: the plan's size is enough for any call.
  conclave::Workspace workspace;
  workspace.region({}, plan.workspace_bytes);
  workspace.lock();

  const auto hidden_states = random_tensor({num_tokens, hidden_size}, 4);
  conclave::Tensor output(conclave::DType::f32, {num_tokens, hidden_size});
  layer.run({.hidden_states = hidden_states}, output, workspace, stream);

  double sum_of_squares = 0;
  for (std::int64_t i = 0; i < output.view().numel(); ++i) sum_of_squares += std::pow(output.as<float>()[i], 2);
  std::printf("output %s, norm %.4f\n", to_string(output.view()).c_str(), std::sqrt(sum_of_squares));
  return sum_of_squares > 0 ? 0 : 1;
}
