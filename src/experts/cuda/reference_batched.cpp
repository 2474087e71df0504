// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: hidden states [E_local, T, H] on a GPU in f32, bf16 or f16, of which the first counts[e] rows of expert e are
// valid. Out: f32 rows of the same shape, unweighted; those behind the counts are not written. The plain part for the
// batched format, on every GPU.
#include "base/local_experts.hpp"
#include "conclave/registry.hpp"
#include "cuda/current_device.hpp"
#include "experts/cuda/check_input.hpp"
#include "experts/cuda/reference_experts.hpp"
#include "experts/cuda/supports.hpp"

namespace conclave::experts::cuda {
namespace {

class ReferenceBatched final : public ReferenceExperts {
 public:
  using ReferenceExperts::ReferenceExperts;

  ActivationFormat activation_format() const noexcept override { return ActivationFormat::batched_experts; }
  ExpertOutputKind output_kind() const noexcept override { return ExpertOutputKind::unreduced_batched; }
  WeightAndReduceKind finalize_weight_and_reduce() const noexcept override {
    return WeightAndReduceKind::naive_batched;
  }

  ExpertsBuffers take_buffers(Arena& arena, std::int64_t num_tokens) const override {
    const std::int64_t experts = num_local_experts(problem());
    ExpertsBuffers buffers;
    buffers.workspace2 = arena.take(DType::f32, {experts * num_tokens, moe().intermediate_size});
    buffers.output = arena.take(DType::f32, {experts, num_tokens, moe().expert_width()});
    return buffers;
  }

  void apply(const ExpertsInput& input, const PackedWeights& packed, const ExpertsBuffers& buffers,
             Stream stream) const override {
    const auto& weights = packed_as<const DeviceWeights>(packed, name());
    check_batched_input(name(), problem(), input, weights, stream);
    const ConstTensorView& x = input.hidden_states;
    if (x.size(1) == 0 || weights.num_local_experts() == 0) return;
    const conclave::cuda::CurrentDevice current(stream.device);
    PlainProducts work = products_of(weights);
    work.hidden_states = x.data;
    work.token_stride = x.stride(1);
    work.counts = input.expert_tokens->counts.as<std::int32_t>();
    work.max_rows = x.size(1);
    // A slot is a row of the input, and its own token.
    work.top_k = 1;
    work.num_tokens = weights.num_local_experts() * x.size(1);
    work.inner = buffers.workspace2.as<float>();
    work.rows = buffers.output.as<float>();
    plain_products(work, static_cast<cudaStream_t>(stream.native));
  }
};

}  // namespace
}  // namespace conclave::experts::cuda

namespace conclave::parts {

Entry<Experts> experts_cuda_reference_batched();
Entry<Experts> experts_cuda_reference_batched() {
  Entry<Experts> entry;
  entry.name = "experts/cuda_reference_batched";
  entry.format = ActivationFormat::batched_experts;
  entry.supports = experts::cuda::supports_unquantized_on_cuda;
  entry.make = [name = entry.name](const PartContext& context) -> std::unique_ptr<Experts> {
    return std::make_unique<experts::cuda::ReferenceBatched>(name, context.problem);
  };
  return entry;
}

}  // namespace conclave::parts
