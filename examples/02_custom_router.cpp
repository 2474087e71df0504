// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A routing rule of one's own: token m goes to experts m and m + 1 (modulo E), whatever its logits are. The rest of the
// layer does not change. The chosen ids are captured and checked.
#include <cstdio>
#include <vector>

#include "conclave/conclave.hpp"

namespace {

constexpr std::int64_t num_experts = 4, top_k = 2, hidden_size = 32, intermediate_size = 24, num_tokens = 7;

// Called with room for [M, k] ids and weights. It must fill both and, since run() does not allocate, nor may this.
void round_robin(const conclave::RouterInput& input, const conclave::Routing& out) {
  for (std::int64_t m = 0; m < input.logits.size(0); ++m) {
    auto* ids = out.topk_ids.at(m).as<std::int32_t>();
    auto* weights = out.topk_weights.at(m).as<float>();
    for (std::int64_t k = 0; k < top_k; ++k) {
      ids[k] = static_cast<std::int32_t>((m + k) % num_experts);
      weights[k] = 1.0F / top_k;
    }
  }
}

conclave::Tensor filled(std::initializer_list<std::int64_t> shape, float value) {
  conclave::Tensor tensor(conclave::DType::f32, shape);
  for (std::int64_t i = 0; i < tensor.view().numel(); ++i) tensor.as<float>()[i] = value;
  return tensor;
}

}  // namespace

int main() {
  const auto executor = conclave::make_executor();
  const auto stream = conclave::Stream::cpu(*executor);

  conclave::Problem problem;
  problem.moe.num_experts = num_experts;
  problem.moe.top_k = top_k;
  problem.moe.hidden_size = hidden_size;
  problem.moe.intermediate_size = intermediate_size;
  problem.moe.max_num_tokens = num_tokens;
  problem.moe.dtype = conclave::DType::f32;
  problem.moe.weight_dtype = conclave::DType::f32;
  problem.moe.routing = conclave::routing_preset(conclave::RoutingMethod::custom);
  problem.device = conclave::cpu_facts(executor->num_threads());

  const conclave::Registry registry = conclave::builtin_registry();
  const auto w13 = filled({num_experts, 2 * intermediate_size, hidden_size}, 0.01F);
  const auto w2 = filled({num_experts, hidden_size, intermediate_size}, 0.02F);
  conclave::LayerWeights weights;
  weights.experts.w13 = w13;
  weights.experts.w2 = w2;
  weights.custom_routing = round_robin;
  conclave::MoeLayer layer(conclave::plan(problem, registry), registry, weights, stream);

  // Without a router weight the caller brings the logits; this rule looks only at how many rows they have.
  const auto hidden_states = filled({num_tokens, hidden_size}, 1.0F);
  const auto logits = filled({num_tokens, num_experts}, 0.0F);
  conclave::Tensor output(conclave::DType::f32, {num_tokens, hidden_size});
  conclave::Tensor ids(conclave::DType::i32, {num_tokens, top_k});
  conclave::Tensor ids_weights(conclave::DType::f32, {num_tokens, top_k});
  conclave::Workspace workspace;
  layer.run({.hidden_states = hidden_states, .router_logits = logits, .captured = conclave::Routing{ids, ids_weights}},
            output, workspace, stream);

  for (std::int64_t m = 0; m < num_tokens; ++m) {
    const auto* row = ids.view().at(m).as<std::int32_t>();
    std::printf("token %d -> experts %d, %d\n", static_cast<int>(m), row[0], row[1]);
    if (row[0] != m % num_experts || row[1] != (m + 1) % num_experts) return 1;
  }
  return 0;
}
