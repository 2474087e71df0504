// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The whole layer: logits, routing, zero experts, latent input, routed kernel, shared kernel, epilogue.
#include "conclave/layer.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/tensor_format.hpp"
#include "conclave/device.hpp"
#include "conclave/shard.hpp"
#include "cuda/current_device.hpp"
#include "kernel/agreement.hpp"
#include "kernel/compose.hpp"
#include "kernel/cuda/steps.hpp"
#include "kernel/kernel_checks.hpp"
#include "kernel/layer_steps.hpp"
#include "kernel/layer_weights.hpp"
#include "kernel/lower.hpp"
#include "kernel/rank_reduction.hpp"
#include "kernel/replicas.hpp"
#include "kernel/stage_timer.hpp"

namespace conclave {
namespace {

/// Small tensors that run() reads again and again; the caller's memory may go away once the layer is built.
/// On a GPU it goes there; the address stays where a tensor of the same shape was kept before, so that a graph that was
/// recorded with it sees new values.
void keep(const std::optional<ConstTensorView>& view, Stream stream, std::optional<Tensor>& kept) {
  if (!view.has_value()) {
    kept.reset();
    return;
  }
  const std::span<const std::int64_t> shape(view->shape.data(), static_cast<std::size_t>(view->rank));
  const bool same = kept && kept->view().dtype == view->dtype && kept->view().rank == view->rank &&
                    std::equal(shape.begin(), shape.end(), kept->view().shape.begin());
  if (!same) kept = Tensor(view->dtype, shape, stream.device);
  copy(*view, *kept, stream);
}

std::optional<ConstTensorView> view_of(const std::optional<Tensor>& tensor) {
  if (!tensor.has_value()) return std::nullopt;
  return ConstTensorView(*tensor);
}

/// The layer's buffers are sized for a run's own M; ids and weights of one routing.
void copy_routing(const Routing& from, const Routing& to, Stream stream) {
  if (stream.device.type == DeviceType::cuda) return on_cuda::convert_routing(from, to, stream);
  for (std::int64_t m = 0; m < from.topk_ids.size(0); ++m)
    for (std::int64_t slot = 0; slot < from.topk_ids.size(1); ++slot) {
      const std::int32_t id = from.topk_ids.at(m).as<std::int32_t>()[slot];
      TensorView ids = to.topk_ids.at(m);
      if (ids.dtype == DType::i64)
        ids.as<std::int64_t>()[slot * ids.stride(0)] = id;
      else
        ids.as<std::int32_t>()[slot * ids.stride(0)] = id;
      TensorView weights = to.topk_weights.at(m);
      weights.as<float>()[slot * weights.stride(0)] = from.topk_weights.at(m).as<float>()[slot];
    }
}

/// Where run_open() puts a routed sum that is not left open further.
TensorView take_open_routed(const FusedMoeKernel& kernel, const MoeConfig& c, Arena& arena, std::int64_t num_tokens) {
  return kernel.leaves_topk_open() ? TensorView{} : arena.take(c.dtype, {num_tokens, c.hidden_size});
}

void check_workspace(const Workspace& workspace, Stream stream) {
  require(workspace.device() == stream.device, "workspace: on {}, and the stream is on {}", workspace.device(),
          stream.device);
}

std::int64_t measure_open(const Plan& plan, const Composition& parts) {
  Arena arena = Arena::measuring(plan.problem.device.device);
  take_open_routed(*parts.routed, plan.problem.moe, arena, plan.problem.moe.max_num_tokens);
  plan_layer_scratch(plan.problem, parts, arena, plan.problem.moe.max_num_tokens);
  return arena.peak();
}

}  // namespace

struct MoeLayer::Impl {
  Plan plan;
  Composition parts;
  std::unique_ptr<PackedWeights> routed_weights;
  std::unique_ptr<PackedWeights> shared_weights;
  std::optional<Tensor> router_weight, router_bias, selection_bias, hash_table, shared_gate, latent_in, latent_out,
      expert_map;
  CustomRouting custom_routing;
  std::int64_t open_workspace_bytes = 0;
  Communicator* communicator = nullptr;
  std::optional<Replicas> replicas;

  const MoeConfig& moe() const noexcept { return plan.problem.moe; }
  const ParallelConfig& parallel() const noexcept { return plan.problem.parallel; }
  Device device() const noexcept { return plan.problem.device.device; }
  /// True: this rank adds a term that every rank could add. Without a communicator the caller sums all ranks.
  bool adds_whole_terms() const noexcept {
    return parts.ranks_to_sum == 1 || communicator != nullptr || (parallel().ep_rank == 0 && parallel().tp_rank == 0);
  }
  /// Tensor parallelism gives each rank a slice of the shared expert, expert parallelism all of it.
  bool adds_shared() const noexcept {
    return moe().shared.intermediate_size > 0 && (parallel().tp_size > 1 || adds_whole_terms());
  }
  void keep_small(const LayerWeights& weights, Stream stream);
  void check_ranks(const LayerWeights& weights) const;
  void check_input(const LayerInput& input, Stream stream) const;
  void check_output(const LayerInput& input, const TensorView& output) const;
  ConstTensorView logits_of(const LayerInput& input, const LayerBuffers& buffers, Stream stream) const;
  RouterInput router_input(const LayerInput& input, const ConstTensorView& logits) const;
  Routing route(const LayerInput& input, const LayerBuffers& buffers, Arena& arena, Stream stream) const;
  /// The same by slots, where experts have replicas.
  Routing place(const Routing& routing, const LayerBuffers& buffers, Stream stream);
  /// Of this rank's experts, or of its slots.
  Tensor map_of_placement() const;
  KernelInput routed_input(const LayerInput& input, const LayerBuffers& buffers, Arena& arena, Stream stream);
  void run_routed(const LayerInput& input, const LayerBuffers& buffers, const TensorView& output, Arena& arena,
                  Stream stream, int channel);
  void run_shared(const LayerInput& input, const LayerBuffers& buffers, const TensorView& output, Arena& arena,
                  Stream stream);
  /// compute(rows) leaves this rank's part in rows; `output` gets that, or the sum over all ranks.
  template <class F>
  void compute_and_sum(bool sum, const TensorView& output, Arena& arena, Stream stream, int channel, F&& compute);
};

void MoeLayer::Impl::keep_small(const LayerWeights& w, Stream stream) {
  keep(w.router_weight, stream, router_weight);
  keep(w.router_bias, stream, router_bias);
  keep(w.e_score_correction_bias, stream, selection_bias);
  keep(w.hash_table, stream, hash_table);
  keep(w.shared_gate, stream, shared_gate);
  keep(w.latent_in, stream, latent_in);
  keep(w.latent_out, stream, latent_out);
  if (w.expert_map || parallel().ep_size == 1) {
    // On a GPU nobody looks at the values again.
    if (w.expert_map && device().type != DeviceType::cpu)
      check_expert_map(*w.expert_map, moe().num_weight_experts(), w.experts.num_local_experts());
    keep(w.expert_map, stream, expert_map);
  } else {
    keep(ConstTensorView(map_of_placement()), stream, expert_map);
  }
  custom_routing = w.custom_routing;
}

/// Parts that exchange tokens know where experts are from the placement; a map that says otherwise would lose rows.
void MoeLayer::Impl::check_ranks(const LayerWeights& weights) const {
  const std::int64_t ranks = parallel().tp_size * parallel().ep_size;
  const std::int64_t rank = parallel().use_ep ? parallel().ep_rank : parallel().tp_rank;
  if (communicator != nullptr) {
    require(communicator->size() == ranks && communicator->rank() == rank,
            "communicator: rank {} of {}, expected rank {} of {} as planned", communicator->rank(),
            communicator->size(), rank, ranks);
    require_agreement(*communicator, plan);
  }
  if (!parts.routed->output_is_reduced() || !weights.expert_map) return;
  const Tensor expected = map_of_placement();
  const ConstTensorView& given = *weights.expert_map;
  require(given.rank == 1 && given.dtype == DType::i32 && given.size(0) == expected.view().size(0),
          "expert_map: given {}, expected {}", given, ConstTensorView(expected));
  for (std::int64_t id = 0; id < given.size(0); ++id)
    require(given.as<std::int32_t>()[id * given.stride(0)] == expected.as<std::int32_t>()[id],
            "expert_map[{}]: given {}, expected {} ({} placement over {} ranks, which {} relies on)", id,
            given.as<std::int32_t>()[id * given.stride(0)], expected.as<std::int32_t>()[id],
            name_of(parallel().placement), ranks, plan.prepare_finalize.chosen);
}

MoeLayer::MoeLayer(const Plan& plan, const Registry& registry, LayerWeights weights, Stream stream,
                   Communicator* communicator)
    : impl_(std::make_unique<Impl>()) {
  check_stream(stream, plan.problem.device.device);
  if (communicator != nullptr && communicator->size() > 1 && stream.device.type != DeviceType::cpu)
    fail(ErrorKind::unsupported, "communicator: {} ranks, and the parts on {} know one", communicator->size(),
         stream.device);
  const cuda::CurrentDevice here(stream.device);
  check_layer_weights(plan.problem.moe, weights);
  impl_->plan = plan;
  impl_->communicator = communicator;
  if (plan.problem.parallel.enable_eplb) impl_->replicas.emplace(plan.problem);
  impl_->parts = compose(plan, registry, communicator);
  impl_->check_ranks(weights);
  impl_->keep_small(weights, stream);
  if (impl_->parts.shared != nullptr)
    impl_->shared_weights = impl_->parts.shared->experts().pack(shared_as_experts(weights), stream);
  impl_->routed_weights = impl_->parts.routed->experts().pack(weights.experts, stream);
  impl_->open_workspace_bytes = measure_open(plan, impl_->parts);
}

MoeLayer::~MoeLayer() = default;
MoeLayer::MoeLayer(MoeLayer&&) noexcept = default;
MoeLayer& MoeLayer::operator=(MoeLayer&&) noexcept = default;

const Plan& MoeLayer::plan() const noexcept {
  return impl_->plan;
}

std::int64_t MoeLayer::weight_bytes() const noexcept {
  return impl_->routed_weights->bytes() + (impl_->shared_weights != nullptr ? impl_->shared_weights->bytes() : 0);
}

std::vector<TensorView> MoeLayer::expert_tensors() const {
  std::vector<TensorView> tensors = impl_->routed_weights->expert_tensors();
  require(!tensors.empty(), "expert_tensors: the packed weights of {} cannot be taken apart",
          impl_->routed_weights->layout());
  return tensors;
}

const ExpertPlacement& MoeLayer::placement() const {
  require(impl_->replicas.has_value(), "placement: the layer was planned without enable_eplb");
  return impl_->replicas->placement();
}

std::string MoeLayer::rebalance() {
  require(impl_->replicas.has_value(), "rebalance: the layer was planned without enable_eplb");
  require(impl_->communicator != nullptr, "rebalance: the layer has no communicator, expected one of {} ranks",
          impl_->parallel().ep_size);
  auto [next, report] = impl_->replicas->propose(*impl_->communicator);
  exchange_weights(impl_->replicas->exchange_to(next), expert_tensors(), *impl_->communicator);
  impl_->replicas->adopt(std::move(next));
  return report;
}

void MoeLayer::update_weights(const LayerWeights& weights, Stream stream) {
  check_stream(stream, impl_->device());
  const cuda::CurrentDevice here(stream.device);
  check_layer_weights(impl_->moe(), weights);
  impl_->parts.routed->experts().update(*impl_->routed_weights, weights.experts, stream);
  if (impl_->shared_weights != nullptr)
    impl_->parts.shared->experts().update(*impl_->shared_weights, shared_as_experts(weights), stream);
  impl_->keep_small(weights, stream);
}

void MoeLayer::Impl::check_output(const LayerInput& input, const TensorView& output) const {
  check_matrix("output", output, input.hidden_states.size(0), moe().hidden_size, moe().dtype, device());
  check_aliasing(input.hidden_states, output, moe().in_place);
}

void MoeLayer::Impl::check_input(const LayerInput& input, Stream stream) const {
  const MoeConfig& c = moe();
  check_stream(stream, device());
  const std::int64_t num_tokens = input.hidden_states.rank == 2 ? input.hidden_states.size(0) : -1;
  check_matrix("hidden_states", input.hidden_states, num_tokens, c.hidden_size, c.dtype, device());
  require(num_tokens <= c.max_num_tokens, "hidden_states: {} tokens, planned for at most {}", num_tokens,
          c.max_num_tokens);
  if (input.routing) check_routing(*input.routing, num_tokens, c.num_slots(), device());
  if (input.routing && c.checked && device().type == DeviceType::cpu)
    check_ids(input.routing->topk_ids, c.num_experts + c.routing.num_fused_shared_experts);
  if (input.captured) {
    check_routing(*input.captured, num_tokens, c.num_slots(), device());
    require(input.captured->topk_weights.dtype == DType::f32, "captured weights: given {}, expected f32",
            input.captured->topk_weights);
  }
  require(!(input.routing && parts.routed->is_monolithic()),
          "routing: given, but {} is monolithic and routes by itself; expected router_logits", plan.experts.chosen);
}

ConstTensorView MoeLayer::Impl::logits_of(const LayerInput& input, const LayerBuffers& buffers, Stream stream) const {
  const MoeConfig& c = moe();
  if (input.router_logits) {
    check_matrix("router_logits", *input.router_logits, input.hidden_states.size(0), c.num_experts,
                 c.router_logits_dtype, device());
    return *input.router_logits;
  }
  require(router_weight.has_value(), "layer: no router_weight, and the input has neither router_logits nor routing");
  router_logits(input.hidden_states, *router_weight, view_of(router_bias), buffers.logits, stream);
  return buffers.logits;
}

RouterInput MoeLayer::Impl::router_input(const LayerInput& input, const ConstTensorView& logits) const {
  require(!moe().routing.has_bias || selection_bias.has_value(),
          "e_score_correction_bias: missing, but the configuration needs it (routing.has_bias)");
  RouterInput r;
  r.logits = logits;
  r.e_score_correction_bias = view_of(selection_bias);
  r.token_ids = input.token_ids;
  r.hash_table = view_of(hash_table);
  r.hidden_states = input.hidden_states;
  r.custom = custom_routing ? &custom_routing : nullptr;
  r.step = input.step;
  return r;
}

/// Ids and weights as the caller or the router gives them, captured on the way; zero experts taken out.
Routing MoeLayer::Impl::route(const LayerInput& input, const LayerBuffers& buffers, Arena& arena, Stream stream) const {
  const MoeConfig& c = moe();
  Routing routing{buffers.topk_ids, buffers.topk_weights};
  if (input.routing) {
    routing = *input.routing;
    if (c.checked && device().type != DeviceType::cpu)
      on_cuda::check_ids(routing.topk_ids, c.num_experts + c.routing.num_fused_shared_experts, buffers.id_check,
                         stream);
  } else {
    parts.router->route(router_input(input, logits_of(input, buffers, stream)), routing, arena, stream);
  }
  if (input.captured && !input.routing) copy_routing(routing, *input.captured, stream);
  if (c.zero_experts == 0) return routing;
  require(routing.topk_ids.dtype == DType::i32 && routing.topk_weights.dtype == DType::f32,
          "routing with zero experts: given {} and {}, expected i32 and f32", routing.topk_ids, routing.topk_weights);
  const Routing experts{buffers.expert_ids, buffers.expert_weights};
  split_zero_experts(routing, c.num_experts - c.zero_experts, experts, buffers.zero_weight, stream);
  return experts;
}

Routing MoeLayer::Impl::place(const Routing& routing, const LayerBuffers& buffers, Stream stream) {
  if (!replicas) return routing;
  require(routing.topk_weights.dtype == DType::f32, "routing with enable_eplb: given weights {}, expected f32",
          routing.topk_weights);
  replicas->choose(routing, buffers.physical_ids, stream);
  return {buffers.physical_ids, routing.topk_weights};
}

Tensor MoeLayer::Impl::map_of_placement() const {
  const Problem problem = modular_problem(plan.problem);
  return expert_map_tensor(problem.moe, problem.parallel);
}

KernelInput MoeLayer::Impl::routed_input(const LayerInput& input, const LayerBuffers& buffers, Arena& arena,
                                         Stream stream) {
  KernelInput kernel;
  kernel.hidden_states = input.hidden_states;
  kernel.expert_map = view_of(expert_map);
  kernel.observer = input.observer;
  const conclave::kernel::StageTimer routing(input.observer, "route");
  const std::int64_t mark = arena.mark();
  if (parts.routed->is_monolithic()) {
    kernel.router = router_input(input, logits_of(input, buffers, stream));
    kernel.captured = input.captured;
  } else {
    kernel.routing = place(route(input, buffers, arena, stream), buffers, stream);
    arena.release(mark);
  }
  if (moe().latent_size > 0) {
    project(input.hidden_states, *latent_in, buffers.latent_f32, buffers.latent, stream);
    kernel.hidden_states = buffers.latent;
  }
  return kernel;
}

/// With the shared expert's output in buffers.shared, if the layer has one.
void MoeLayer::Impl::run_routed(const LayerInput& input, const LayerBuffers& buffers, const TensorView& output,
                                Arena& arena, Stream stream, int channel) {
  const std::int64_t mark = arena.mark();
  KernelInput kernel = routed_input(input, buffers, arena, stream);
  kernel.channel = channel;
  const auto shared = [&] { run_shared(input, buffers, buffers.shared, arena, stream); };
  const FunctionRef<void()> during(shared);
  const bool has_shared = adds_shared() && input.hidden_states.size(0) > 0;
  if (has_shared && parts.overlaps_shared()) kernel.during_finalize = &during;
  compute_and_sum(true, output, arena, stream, channel,
                  [&](const TensorView& rows) { parts.routed->run(kernel, *routed_weights, rows, arena, stream); });
  arena.release(mark);
  if (!has_shared || parts.overlaps_shared()) return;
  compute_and_sum(parallel().tp_size > 1, buffers.shared, arena, stream, channel,
                  [&](const TensorView& rows) { run_shared(input, buffers, rows, arena, stream); });
  arena.release(mark);
}

template <class F>
void MoeLayer::Impl::compute_and_sum(bool sum, const TensorView& output, Arena& arena, Stream stream, int channel,
                                     F&& compute) {
  if (!sum || communicator == nullptr || parts.ranks_to_sum == 1) return compute(output);
  const RankSum parts_of_ranks = take_rank_sum(arena, communicator->size(), output.size(0), output.size(1));
  compute(parts_of_ranks.rows);
  sum_rows_over_ranks(*communicator, parts_of_ranks, output, stream, channel);
}

void MoeLayer::Impl::run_shared(const LayerInput& input, const LayerBuffers& buffers, const TensorView& output,
                                Arena& arena, Stream stream) {
  const conclave::kernel::StageTimer computing(input.observer, "shared");
  const Routing routing{buffers.shared_ids, buffers.shared_weights};
  route_shared(input.hidden_states, view_of(shared_gate), routing, stream);
  KernelInput kernel;
  kernel.hidden_states = input.hidden_states;
  kernel.routing = routing;
  const std::int64_t mark = arena.mark();
  parts.shared->run(kernel, *shared_weights, output, arena, stream);
  arena.release(mark);
}

void MoeLayer::run(const LayerInput& input, const TensorView& output, Workspace& workspace, Stream stream,
                   WorkspaceSlot slot) {
  Impl& impl = *impl_;
  const MoeConfig& c = impl.moe();
  impl.check_input(input, stream);
  impl.check_output(input, output);
  const std::int64_t num_tokens = input.hidden_states.size(0);
  // A rank without tokens still computes its experts for those of the others.
  if (num_tokens == 0 && impl.parts.routed->prepare_finalize().num_dispatchers() == 1) return;
  check_workspace(workspace, stream);
  const cuda::CurrentDevice here(stream.device);
  Arena arena(workspace.region(slot, impl.plan.workspace_bytes), workspace.device());
  const LayerBuffers buffers = take_layer_buffers(impl.plan.problem, arena, num_tokens);
  const TensorView& routed = has_epilogue(c) ? buffers.routed : output;
  impl.run_routed(input, buffers, routed, arena, stream, slot.micro_batch);
  if (!has_epilogue(c) || num_tokens == 0) return;
  EpilogueInput last;
  last.routed = buffers.routed;
  if (c.latent_size > 0) {
    // The projection back stays in f32 until the epilogue rounds everything once.
    const TensorView wide(buffers.latent_f32.data, DType::f32, {num_tokens, c.hidden_size}, stream.device);
    project(buffers.routed, *impl.latent_out, wide, wide, stream);
    last.routed = wide;
  }
  if (c.routed_scale_on_output) last.routed_scale = c.routing.routed_scaling_factor;
  last.hidden_states = input.hidden_states;
  if (c.zero_experts > 0 && impl.adds_whole_terms()) last.zero_weight = buffers.zero_weight;
  if (impl.adds_shared()) last.shared = buffers.shared;
  epilogue(last, output, stream);
}

std::int64_t MoeLayer::open_workspace_bytes() const noexcept {
  return impl_->open_workspace_bytes;
}

MoeOutput MoeLayer::run_open(const LayerInput& input, Workspace& workspace, Stream stream, WorkspaceSlot slot) {
  Impl& impl = *impl_;
  const MoeConfig& c = impl.moe();
  require(c.latent_size == 0 && c.zero_experts == 0,
          "run_open: latent_size {} and zero_experts {}, expected 0: their terms come behind the sum over ranks",
          c.latent_size, c.zero_experts);
  impl.check_input(input, stream);
  const std::int64_t num_tokens = input.hidden_states.size(0);
  check_workspace(workspace, stream);
  const cuda::CurrentDevice here(stream.device);
  Arena arena(workspace.region(slot, impl.open_workspace_bytes), workspace.device());
  const TensorView routed = take_open_routed(*impl.parts.routed, c, arena, num_tokens);
  const LayerBuffers buffers = take_layer_buffers(impl.plan.problem, arena, num_tokens);
  // Shared before routed: what the routed kernel leaves in the arena is the result, and must not be reused.
  // The consumer sums over ranks, so where every rank has all of the shared expert, one adds it.
  const ParallelConfig& p = impl.parallel();
  const bool shared = c.shared.intermediate_size > 0 && (p.tp_size > 1 || (p.ep_rank == 0 && p.tp_rank == 0));
  if (shared && num_tokens > 0) impl.run_shared(input, buffers, buffers.shared, arena, stream);
  MoeOutput open;
  if (num_tokens == 0)
    open.routed = TensorView(nullptr, c.dtype, {0, c.hidden_size}, stream.device);
  else
    open = impl.parts.routed->run_open(impl.routed_input(input, buffers, arena, stream), *impl.routed_weights, routed,
                                       arena, stream);
  if (shared) open.shared_output = buffers.shared;
  if (c.routed_scale_on_output) open.routed_scaling_factor = c.routing.routed_scaling_factor;
  return open;
}

}  // namespace conclave
