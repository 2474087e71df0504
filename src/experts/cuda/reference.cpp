// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: hidden states [M, H] on a GPU in f32, bf16 or f16, ids and weights [M, k]. Out: [M, H], weighted and reduced.
// Everything unquantised, on every GPU, in f32 between input and output: what faster parts are compared with, and what
// runs where they refuse.
#include "base/error.hpp"
#include "conclave/registry.hpp"
#include "cuda/current_device.hpp"
#include "experts/cuda/check_input.hpp"
#include "experts/cuda/device_weights.hpp"
#include "experts/cuda/reference_kernels.hpp"
#include "experts/cuda/supports.hpp"
#include "experts/weights_check.hpp"

namespace conclave::experts::cuda {
namespace {

class Reference final : public ModularExperts {
 public:
  Reference(std::string name, const Problem& problem)
      : name_(std::move(name)),
        problem_(problem),
        activation_(make_activation(problem.moe.activation, problem.moe.activation_params)) {}

  const std::string& name() const noexcept override { return name_; }
  bool supports_expert_map() const noexcept override { return true; }
  ExpertOutputKind output_kind() const noexcept override { return ExpertOutputKind::reduced; }
  WeightAndReduceKind finalize_weight_and_reduce() const noexcept override { return WeightAndReduceKind::no_op; }

  std::unique_ptr<PackedWeights> pack(const ExpertWeights& weights, Stream stream) const override {
    return std::make_unique<DeviceWeights>(name_, DeviceLayout{DType::f32, 1, false}, problem_, weights, stream);
  }
  void update(PackedWeights& packed, const ExpertWeights& weights, Stream stream) const override {
    packed_as<DeviceWeights>(packed, name_).assign(problem_, weights, stream);
  }

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
    const auto& weights = packed_as<const DeviceWeights>(packed, name_);
    check_input(name_, problem_, input, buffers, stream);
    const std::int64_t num_tokens = input.hidden_states.size(0);
    if (num_tokens == 0) return;
    const conclave::cuda::CurrentDevice current(stream.device);
    PlainProducts work;
    work.hidden_states = input.hidden_states.data;
    work.dtype = moe().dtype;
    work.token_stride = input.hidden_states.stride(0);
    work.topk_ids = input.topk_ids.as<std::int32_t>();
    work.topk_weights = input.router_weight_applied ? nullptr : input.topk_weights.as<float>();
    work.expert_map = input.expert_map ? input.expert_map->as<std::int32_t>() : nullptr;
    work.num_local_experts = static_cast<std::int32_t>(weights.num_local_experts());
    work.num_ids = input.expert_map ? static_cast<std::int32_t>(input.expert_map->size(0)) : work.num_local_experts;
    work.top_k = static_cast<std::int32_t>(moe().num_slots());
    work.num_tokens = num_tokens;
    work.hidden_size = moe().expert_width();
    work.intermediate_size = moe().intermediate_size;
    work.layout = moe().w13_layout;
    work.activation = activation_;
    work.w13 = static_cast<const float*>(weights.w13());
    work.w2 = static_cast<const float*>(weights.w2());
    work.w13_bias = weights.w13_bias();
    work.w2_bias = weights.w2_bias();
    work.inner = buffers.workspace2.as<float>();
    work.rows = buffers.workspace13.as<float>();
    work.output = buffers.output.data;
    work.output_stride = buffers.output.stride(0);
    plain_products(work, static_cast<cudaStream_t>(stream.native));
  }
  std::string describe(std::int64_t /*num_tokens*/) const override { return "a warp an element, f32"; }

 private:
  const MoeConfig& moe() const noexcept { return problem_.moe; }

  std::string name_;
  Problem problem_;
  ActivationFn activation_;
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
