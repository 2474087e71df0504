// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// prepare -> experts -> finalize, for modular and for monolithic parts.
#include <cstring>

#include "base/error.hpp"
#include "base/tensor_format.hpp"
#include "conclave/kernel.hpp"
#include "conclave/tail.hpp"
#include "cpu/float_convert.hpp"
#include "cuda/current_device.hpp"
#include "kernel/cuda/steps.hpp"
#include "kernel/kernel_checks.hpp"
#include "kernel/stage_timer.hpp"

namespace conclave {
namespace {

/// Ids as i32 and weights as f32, contiguous: the caller's where they are so already, else a copy in `scratch`.
Routing canonical_routing(const Routing& given, const Routing& scratch, Stream stream) {
  Routing out = given;
  if (stream.device.type == DeviceType::cuda) {
    const bool fits = given.topk_ids.dtype == DType::i32 && given.topk_ids.is_contiguous() &&
                      given.topk_weights.dtype == DType::f32 && given.topk_weights.is_contiguous();
    if (fits) return out;
    on_cuda::convert_routing(given, scratch, stream);
    return scratch;
  }
  if (given.topk_ids.dtype != DType::i32 || !given.topk_ids.is_contiguous()) {
    out.topk_ids = scratch.topk_ids;
    for (std::int64_t row = 0; row < given.topk_ids.size(0); ++row)
      for (std::int64_t slot = 0; slot < given.topk_ids.size(1); ++slot) {
        const std::int64_t at = row * given.topk_ids.stride(0) + slot * given.topk_ids.stride(1);
        const std::int64_t id = given.topk_ids.dtype == DType::i64 ? given.topk_ids.as<std::int64_t>()[at]
                                                                   : given.topk_ids.as<std::int32_t>()[at];
        // An id that i32 cannot hold is no expert either way.
        const bool fits = id >= -1 && id <= INT32_MAX;
        out.topk_ids.as<std::int32_t>()[row * out.topk_ids.stride(0) + slot] =
            fits ? static_cast<std::int32_t>(id) : -1;
      }
  }
  if (given.topk_weights.dtype != DType::f32 || !given.topk_weights.is_contiguous()) {
    out.topk_weights = scratch.topk_weights;
    for (std::int64_t row = 0; row < given.topk_weights.size(0); ++row)
      cpu::load_row_f32(given.topk_weights.at(row), out.topk_weights.at(row).as<float>());
  }
  return out;
}

Routing take_routing(Arena& arena, std::int64_t num_tokens, std::int64_t num_slots) {
  return {arena.take(DType::i32, {num_tokens, num_slots}), arena.take(DType::f32, {num_tokens, num_slots})};
}

/// What the check of ids needs on a GPU.
TensorView take_id_check(Arena& arena, const MoeConfig& c) {
  return c.checked ? arena.take(DType::i64, {1}) : TensorView{};
}

ModularPrepareFinalize& modular(PrepareFinalize& part) {
  return static_cast<ModularPrepareFinalize&>(part);
}
MonolithicPrepareFinalize& monolithic(PrepareFinalize& part) {
  return static_cast<MonolithicPrepareFinalize&>(part);
}

/// True if experts may write the caller's output themselves: it is what they would have filled, or that before it is
/// rounded, and nobody reads it.
bool can_write_output(const ModularExperts& experts, const ExpertsBuffers& buffers, const ConstTensorView& output,
                      const ConstTensorView& input) {
  const ConstTensorView own = buffers.output;
  const bool dtype_fits = own.dtype == output.dtype || (output.dtype == DType::f32 && experts.writes_f32_output());
  return dtype_fits && own.rank == output.rank && own.shape == output.shape && output.is_contiguous() &&
         !overlap(output, input);
}

/// In a micro-batch, siblings compute while the data travels, and the next of them waits for it. Elsewhere: waits.
template <class T>
void wait_for_arrival(Pending<T>& pending, kernel::StageTimer in_flight) {
  if (pending.has_hook()) {
    micro_batch::wait_for_recv([&] {
      pending.hook();
      in_flight.end();
    });
  } else {
    micro_batch::yield();
  }
}

Prepared prepare_rows(ModularPrepareFinalize& ends, const PrepareInput& input, Arena& arena, Stream stream,
                      StageObserver* observer) {
  if (ends.supports_async()) micro_batch::run_pending_recv_hook();
  kernel::StageTimer launch(observer, "prepare");
  if (!ends.supports_async()) return ends.prepare(input, arena, stream);
  Pending<Prepared> pending = ends.prepare_async(input, arena, stream);
  launch.end();
  wait_for_arrival(pending, {observer, "dispatch", true});
  const kernel::StageTimer receive(observer, "prepare");
  return pending.finish();
}

/// `during`: done while the results travel, where they do, else at the end.
void finalize_rows(ModularPrepareFinalize& ends, const FinalizeInput& input, const TensorView& output, Stream stream,
                   const FunctionRef<void()>* during, StageObserver* observer) {
  if (ends.supports_async()) micro_batch::run_pending_recv_hook();
  kernel::StageTimer launch(observer, "finalize");
  if (!ends.supports_async()) {
    ends.finalize(input, output, stream);
    launch.end();
    if (during != nullptr) (*during)();
    return;
  }
  Pending<Done> pending = ends.finalize_async(input, output, stream);
  launch.end();
  if (during != nullptr) (*during)();
  wait_for_arrival(pending, {observer, "combine", true});
  const kernel::StageTimer receive(observer, "finalize");
  pending.finish();
}

}  // namespace

FusedMoeKernel::FusedMoeKernel(const Problem& problem, std::unique_ptr<PrepareFinalize> prepare_finalize,
                               std::unique_ptr<Experts> experts)
    : problem_(problem), prepare_finalize_(std::move(prepare_finalize)), experts_(std::move(experts)) {
  require(prepare_finalize_ != nullptr && experts_ != nullptr, "kernel: both parts must be given");
  const auto kind = [](bool is_monolithic) { return is_monolithic ? "monolithic" : "modular"; };
  require(prepare_finalize_->is_monolithic() == experts_->is_monolithic(),
          "kernel: {} is {} and {} is {}, expected both modular or both monolithic", prepare_finalize_->name(),
          kind(prepare_finalize_->is_monolithic()), experts_->name(), kind(experts_->is_monolithic()));
  const QuantKey key = problem.quant.activations;
  require(key == QuantKey::none || experts_->expects_unquantized_inputs() || prepare_finalize_->can_quantise(key),
          "kernel: {} takes activations quantised as {}, and {} passes them on as they are", experts_->name(),
          name_of(key), prepare_finalize_->name());
  prepare_finalize_->post_init_setup(*experts_);
  require(prepare_finalize_->activation_format() == experts_->activation_format(),
          "kernel: {} produces the {} format and {} takes the {} format", prepare_finalize_->name(),
          name_of(prepare_finalize_->activation_format()), experts_->name(), name_of(experts_->activation_format()));
  require(!leaves_topk_open() || (!is_monolithic() && prepare_finalize_->supports_deferred_finalize()),
          "kernel: {} leaves the sum over top-k open and {} cannot leave its finalize out", experts_->name(),
          prepare_finalize_->name());
}

void FusedMoeKernel::plan_scratch(Arena& arena, std::int64_t num_tokens) const {
  const std::int64_t rows = prepare_finalize_->expert_rows(num_tokens);
  if (is_monolithic()) {
    static_cast<const MonolithicPrepareFinalize&>(*prepare_finalize_).plan_scratch(arena, num_tokens);
  } else {
    take_routing(arena, num_tokens, problem_.moe.top_k);
    take_id_check(arena, problem_.moe);
    static_cast<const ModularPrepareFinalize&>(*prepare_finalize_).plan_scratch(arena, num_tokens);
  }
  experts_->take_buffers(arena, rows);
}

void FusedMoeKernel::check_input(const KernelInput& input, const PackedWeights& weights, Stream stream) const {
  const MoeConfig& c = problem_.moe;
  const std::int64_t num_tokens = input.hidden_states.rank == 2 ? input.hidden_states.size(0) : -1;
  const Device device = problem_.device.device;
  check_stream(stream, device);
  check_matrix("hidden_states", input.hidden_states, num_tokens, c.hidden_size, c.dtype, device);
  require(num_tokens <= c.max_num_tokens, "hidden_states: {} tokens, planned for at most {}", num_tokens,
          c.max_num_tokens);
  if (input.expert_map) {
    require(input.expert_map->device == device, "expert_map: given on {}, expected on {}", input.expert_map->device,
            device);
    require(experts_->supports_expert_map(), "expert_map: given, but {} does not take one", experts_->name());
    check_expert_map(*input.expert_map, c.num_experts, weights.num_local_experts());
  } else {
    require(weights.num_local_experts() == c.num_experts,
            "weights: {} experts without an expert_map, expected num_experts {}", weights.num_local_experts(),
            c.num_experts);
  }
}

void FusedMoeKernel::run(const KernelInput& input, const PackedWeights& weights, const TensorView& output, Arena& arena,
                         Stream stream) {
  check_input(input, weights, stream);
  const DType dtype = output.dtype == DType::f32 ? DType::f32 : problem_.moe.dtype;
  check_matrix("output", output, input.hidden_states.size(0), problem_.moe.hidden_size, dtype, stream.device);
  check_aliasing(input.hidden_states, output, problem_.moe.in_place);
  const cuda::CurrentDevice here(stream.device);
  if (is_monolithic())
    run_monolithic(input, weights, output, arena, stream);
  else
    run_modular(input, weights, output, arena, stream);
}

MoeOutput FusedMoeKernel::run_open(const KernelInput& input, const PackedWeights& weights, const TensorView& routed,
                                   Arena& arena, Stream stream) {
  require(!output_is_reduced(), "run_open: {} has summed over ranks, nothing is left open", prepare_finalize_->name());
  const std::int64_t num_tokens = input.hidden_states.rank == 2 ? input.hidden_states.size(0) : -1;
  MoeOutput open;
  if (leaves_topk_open() && num_tokens > 0) {
    check_input(input, weights, stream);
    const cuda::CurrentDevice here(stream.device);
    run_modular(input, weights, {}, arena, stream, &open);
    return open;
  }
  TensorView sum = routed;
  if (num_tokens == 0 && sum.rank == 0)
    sum = TensorView(nullptr, problem_.moe.dtype, {0, problem_.moe.hidden_size}, stream.device);
  run(input, weights, sum, arena, stream);
  open.routed = sum;
  return open;
}

void FusedMoeKernel::run_modular(const KernelInput& input, const PackedWeights& weights, const TensorView& output,
                                 Arena& arena, Stream stream, MoeOutput* open) {
  const MoeConfig& c = problem_.moe;
  const std::int64_t num_tokens = input.hidden_states.size(0);
  require(input.routing.has_value(), "kernel: {} is modular and needs routing (ids and weights)", experts_->name());
  check_routing(*input.routing, num_tokens, c.top_k, stream.device);
  const bool on_host = stream.device.type == DeviceType::cpu;
  if (c.checked && on_host) check_ids(input.routing->topk_ids, c.num_experts);
  // A rank without tokens still serves those of the others.
  if (num_tokens == 0 && prepare_finalize_->num_dispatchers() == 1) return;

  const auto& experts = static_cast<const ModularExperts&>(*experts_);
  ModularPrepareFinalize& ends = modular(*prepare_finalize_);
  const Routing routing = canonical_routing(*input.routing, take_routing(arena, num_tokens, c.top_k), stream);
  const TensorView id_check = take_id_check(arena, c);
  if (c.checked && !on_host) on_cuda::check_ids(input.routing->topk_ids, c.num_experts, id_check, stream);
  const PrepareInput prepare{input.hidden_states,
                             routing,
                             input.expert_map,
                             c.apply_router_weight_on_input,
                             experts_->expects_unquantized_inputs(),
                             input.channel};
  const Prepared prepared = prepare_rows(ends, prepare, arena, stream, input.observer);

  const bool batched = experts.activation_format() == ActivationFormat::batched_experts;
  ExpertsBuffers buffers = experts.take_buffers(arena, prepared.activations.size(batched ? 1 : 0));
  const WeightAndReduceKind reduce = experts.finalize_weight_and_reduce();
  if (reduce == WeightAndReduceKind::no_op && !output_is_reduced() &&
      can_write_output(experts, buffers, output, input.hidden_states))
    buffers.output = output;
  const Routing& dispatched = prepared.dispatched ? *prepared.dispatched : routing;
  kernel::StageTimer computing(input.observer, "experts");
  experts.apply({prepared.activations, prepared.scales, dispatched.topk_ids, dispatched.topk_weights, input.expert_map,
                 prepared.expert_tokens, c.apply_router_weight_on_input},
                weights, buffers, stream);
  computing.end();
  if (leaves_topk_open()) {
    // Finalize is left out; where nobody consumes the open form, the tail's own reduction stands in for it.
    MoeOutput left;
    left.unfinalized = experts.unfinalized_output(buffers);
    if (open != nullptr)
      *open = left;
    else
      finish(left, output, stream);
    if (input.during_finalize != nullptr) (*input.during_finalize)();
    return;
  }

  const FinalizeInput finalize{{experts.output_kind(), buffers.output, std::nullopt},
                               routing,
                               input.expert_map,
                               c.apply_router_weight_on_input,
                               &weight_and_reduce(reduce),
                               prepared.handle};
  finalize_rows(ends, finalize, output, stream, input.during_finalize, input.observer);
}

void FusedMoeKernel::run_monolithic(const KernelInput& input, const PackedWeights& weights, const TensorView& output,
                                    Arena& arena, Stream stream) {
  const MoeConfig& c = problem_.moe;
  const std::int64_t num_tokens = input.hidden_states.size(0);
  require(input.router.has_value(), "kernel: {} is monolithic and needs router logits", experts_->name());
  const ConstTensorView& logits = input.router->logits;
  require(is_compute_dtype(logits.dtype), "router_logits: given {}, expected f32, bf16 or f16", logits);
  check_matrix("router_logits", logits, num_tokens, c.num_experts, logits.dtype);
  if (input.captured) check_routing(*input.captured, num_tokens, c.num_slots());
  if (num_tokens == 0) return;

  const auto& experts = static_cast<const MonolithicExperts&>(*experts_);
  MonolithicPrepareFinalize& ends = monolithic(*prepare_finalize_);
  const PreparedMonolithic prepared =
      ends.prepare(input.hidden_states, logits, experts_->expects_unquantized_inputs(), arena, stream);
  const ExpertsBuffers buffers = experts.take_buffers(arena, num_tokens);
  RouterInput router = *input.router;
  router.logits = prepared.router_logits;
  kernel::StageTimer computing(input.observer, "experts");
  experts.apply({prepared.activations, prepared.scales, router, input.expert_map, input.captured}, weights, buffers,
                stream);
  computing.end();
  ends.finalize({experts.output_kind(), buffers.output, std::nullopt}, output, stream);
  if (input.during_finalize != nullptr) (*input.during_finalize)();
}

}  // namespace conclave
