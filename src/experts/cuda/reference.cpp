// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: hidden states [M, H] on a GPU in f32, bf16 or f16, ids and weights [M, k]. Out: [M, H], weighted and reduced.
// Everything unquantised, on every GPU, in f32 between input and output: what faster parts are compared with, and what
// runs where they refuse.
#include "conclave/registry.hpp"
#include "cuda/current_device.hpp"
#include "experts/cuda/check_input.hpp"
#include "experts/cuda/reference_experts.hpp"
#include "experts/cuda/supports.hpp"

namespace conclave::experts::cuda {
namespace {

class Reference final : public ReferenceExperts {
 public:
  using ReferenceExperts::ReferenceExperts;

  ExpertOutputKind output_kind() const noexcept override { return ExpertOutputKind::reduced; }
  WeightAndReduceKind finalize_weight_and_reduce() const noexcept override { return WeightAndReduceKind::no_op; }

  ExpertsBuffers take_buffers(Arena& arena, std::int64_t num_tokens) const override {
    const std::int64_t slots = num_tokens * moe().num_slots();
    ExpertsBuffers buffers;
    buffers.workspace13 = arena.take(DType::f32, {slots, moe().expert_width()});
    buffers.workspace2 = arena.take(DType::f32, {slots, moe().intermediate_size});
    buffers.output = arena.take(moe().dtype, {num_tokens, moe().expert_width()});
    return buffers;
  }

  void apply(const ExpertsInput& input, const PackedWeights& packed, const ExpertsBuffers& buffers,
             Stream stream) const override {
    const auto& weights = packed_as<const DeviceWeights>(packed, name());
    check_input(name(), problem(), input, buffers, stream);
    const std::int64_t num_tokens = input.hidden_states.size(0);
    if (num_tokens == 0) return;
    const conclave::cuda::CurrentDevice current(stream.device);
    PlainProducts work = products_of(weights);
    work.hidden_states = input.hidden_states.data;
    work.token_stride = input.hidden_states.stride(0);
    work.topk_ids = input.topk_ids.as<std::int32_t>();
    work.topk_weights = input.router_weight_applied ? nullptr : input.topk_weights.as<float>();
    work.expert_map = input.expert_map ? input.expert_map->as<std::int32_t>() : nullptr;
    work.num_ids = input.expert_map ? static_cast<std::int32_t>(input.expert_map->size(0)) : work.num_local_experts;
    work.top_k = static_cast<std::int32_t>(moe().num_slots());
    work.num_tokens = num_tokens;
    work.inner = buffers.workspace2.as<float>();
    work.rows = buffers.workspace13.as<float>();
    work.output = buffers.output.data;
    work.output_stride = buffers.output.stride(0);
    plain_products(work, static_cast<cudaStream_t>(stream.native));
  }
};

}  // namespace
}  // namespace conclave::experts::cuda

namespace conclave::parts {

Entry<Experts> experts_cuda_reference();
Entry<Experts> experts_cuda_reference() {
  Entry<Experts> entry;
  entry.name = "experts/cuda_reference";
  entry.supports = experts::cuda::supports_unquantized_on_cuda;
  entry.make = [name = entry.name](const PartContext& context) -> std::unique_ptr<Experts> {
    return std::make_unique<experts::cuda::Reference>(name, context.problem);
  };
  return entry;
}

}  // namespace conclave::parts
