// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Builds the parts of a plan; lays out the layer's buffers.
#include "kernel/compose.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "kernel/lower.hpp"
#include "kernel/rank_reduction.hpp"

namespace conclave {
namespace {

template <class Part>
const Entry<Part>& entry_of(const PartList<Part>& list, const std::string& name) {
  const Entry<Part>* entry = list.find(name);
  require(entry != nullptr, "plan names \"{}\", which is not in this registry", name);
  return *entry;
}

std::unique_ptr<FusedMoeKernel> make_kernel(const Plan& plan, const Registry& registry,
                                            const std::shared_ptr<const Router>& router, Communicator* communicator) {
  const auto& experts = entry_of(registry.experts, plan.experts.chosen);
  const auto& ends = entry_of(registry.prepare_finalizes, plan.prepare_finalize.chosen);
  const Problem problem = experts.monolithic ? monolithic_problem(plan.problem) : modular_problem(plan.problem);
  const PartContext context{problem, router, communicator};
  return std::make_unique<FusedMoeKernel>(problem, ends.make(context), experts.make(context));
}

}  // namespace

Composition compose(const Plan& plan, const Registry& registry, Communicator* communicator) {
  Composition parts;
  // The router sees the layer's own problem, but a factor that goes onto the output must not be in its weights too.
  Problem routing = plan.problem;
  if (routing.moe.routed_scale_on_output) routing.moe.routing.routed_scaling_factor = 1.0;
  parts.router = entry_of(registry.routers, plan.router.chosen).make({routing, nullptr});
  parts.routed = make_kernel(plan, registry, parts.router, communicator);
  if (plan.shared != nullptr) parts.shared = make_kernel(*plan.shared, registry, nullptr, nullptr);
  parts.ranks_to_sum = ranks_to_sum(plan.problem.parallel, parts.routed->output_is_reduced());
  return parts;
}

LayerBuffers take_layer_buffers(const Problem& layer, Arena& arena, std::int64_t m) {
  const MoeConfig& c = layer.moe;
  LayerBuffers b;
  b.logits = arena.take(DType::f32, {m, c.num_experts});
  b.topk_ids = arena.take(DType::i32, {m, c.num_slots()});
  b.topk_weights = arena.take(DType::f32, {m, c.num_slots()});
  if (c.zero_experts > 0) {
    b.expert_ids = arena.take(DType::i32, {m, c.num_slots()});
    b.expert_weights = arena.take(DType::f32, {m, c.num_slots()});
    b.zero_weight = arena.take(DType::f32, {m});
  }
  if (layer.parallel.enable_eplb) b.physical_ids = arena.take(DType::i32, {m, c.num_slots()});
  if (c.latent_size > 0) {
    b.latent_f32 = arena.take(DType::f32, {m, std::max(c.latent_size, c.hidden_size)});
    b.latent = arena.take(c.dtype, {m, c.latent_size});
  }
  // What the epilogue adds to is rounded by nothing before; on a GPU, by the experts.
  const DType terms = layer.device.device.type == DeviceType::cpu ? DType::f32 : c.dtype;
  if (has_epilogue(c)) b.routed = arena.take(terms, {m, c.expert_width()});
  if (c.shared.intermediate_size > 0) {
    b.shared_ids = arena.take(DType::i32, {m, 1});
    b.shared_weights = arena.take(DType::f32, {m, 1});
    b.shared = arena.take(terms, {m, c.hidden_size});
  }
  if (c.checked) b.id_check = arena.take(DType::i64, {1});
  return b;
}

void plan_layer_scratch(const Problem& layer, const Composition& parts, Arena& arena, std::int64_t num_tokens) {
  const MoeConfig& moe = layer.moe;
  take_layer_buffers(layer, arena, num_tokens);
  // Router, routed kernel and shared kernel run one after the other and share the memory behind the layer's buffers.
  const std::int64_t mark = arena.mark();
  parts.router->plan_scratch(arena, num_tokens);
  arena.release(mark);
  // Where the ranks' parts are summed, both kernels write into the same f32 rows.
  if (parts.ranks_to_sum > 1)
    take_rank_sum(arena, parts.ranks_to_sum, num_tokens, std::max(moe.hidden_size, moe.expert_width()));
  const std::int64_t kernels = arena.mark();
  parts.routed->plan_scratch(arena, num_tokens);
  if (!parts.overlaps_shared()) arena.release(kernels);
  if (parts.shared != nullptr) parts.shared->plan_scratch(arena, num_tokens);
  arena.release(mark);
}

}  // namespace conclave
