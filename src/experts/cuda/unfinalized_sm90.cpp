// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: hidden states [M, H] bf16 or f16 on a Hopper GPU, ids and weights [M, k]. Out: UnfinalizedMoeOutput, whose views
// point into the buffers: rows after GEMM2 sorted by expert, unweighted, with weights and the row of each slot. As
// experts/cuda_grouped_sm90 without its weighted sum, which the consumer does.
#include <fmt/format.h>

#include "conclave/registry.hpp"
#include "cuda/current_device.hpp"
#include "experts/cuda/check_input.hpp"
#include "experts/cuda/open_weights.hpp"
#include "experts/cuda/sorted_experts.hpp"
#include "experts/supports.hpp"
#include "experts/weights_check.hpp"

namespace conclave::experts::cuda {
namespace {

class UnfinalizedSm90 final : public SortedExperts {
 public:
  using SortedExperts::SortedExperts;

  ExpertOutputKind output_kind() const noexcept override { return ExpertOutputKind::unfinalized; }
  WeightAndReduceKind finalize_weight_and_reduce() const noexcept override { return WeightAndReduceKind::delegate; }

  ExpertsBuffers take_buffers(Arena& arena, std::int64_t num_tokens) const override {
    const std::int64_t slots = slots_of(num_tokens);
    ExpertsBuffers buffers;
    buffers.workspace2 = arena.take(moe().dtype, {slots, inner()});
    buffers.output = arena.take(row_dtype(), {slots, hidden()});
    Arena measure = Arena::measuring();
    take_open_scratch(measure, num_tokens);
    buffers.scratch = arena.take(DType::u8, {measure.used()});
    return buffers;
  }

  void apply(const ExpertsInput& input, const PackedWeights& packed, const ExpertsBuffers& buffers,
             Stream stream) const override {
    const auto& weights = packed_as<const DeviceWeights>(packed, name());
    check_input(name(), problem(), input, stream);
    if (input.hidden_states.size(0) == 0) return;
    const conclave::cuda::CurrentDevice current(stream.device);
    const OpenScratch scratch = scratch_of(buffers);
    open_weights(input.router_weight_applied ? nullptr : input.topk_weights.as<float>(), scratch.weights.as<float>(),
                 scratch.weights.numel(), static_cast<cudaStream_t>(stream.native));
    sorted_products(input, weights, scratch.sorted, buffers.workspace2, buffers.output, stream);
  }

  UnfinalizedMoeOutput unfinalized_output(const ExpertsBuffers& buffers) const override {
    const OpenScratch scratch = scratch_of(buffers);
    const TensorView& weights = scratch.weights;
    return {buffers.output, weights,
            TensorView(scratch.sorted.map.slot_rows, DType::i32, {weights.size(0), weights.size(1)}, weights.device)};
  }

 private:
  struct OpenScratch {
    TensorView weights;  ///< f32 [M, k]
    Scratch sorted;
  };
  OpenScratch take_open_scratch(Arena& arena, std::int64_t num_tokens) const {
    OpenScratch scratch;
    scratch.weights = arena.take(DType::f32, {num_tokens, moe().num_slots()});
    scratch.sorted = take_scratch(arena, num_tokens);
    return scratch;
  }
  OpenScratch scratch_of(const ExpertsBuffers& buffers) const {
    Arena arena({buffers.scratch.as<std::byte>(), static_cast<std::size_t>(buffers.scratch.bytes())},
                buffers.scratch.device);
    return take_open_scratch(arena, buffers.output.size(0) / moe().num_slots());
  }
};

/// A consumer indexes rows by their number alone, so they may have no padding between them.
Support supports_dense_rows(const Problem& problem) {
  if (problem.moe.expert_width() % 8 == 0) return Support::yes();
  return Support::no(fmt::format("hidden_size {}, it takes multiples of 8: padded rows would not be dense",
                                 problem.moe.expert_width()));
}

Support supports_unfinalized(const Problem& problem) {
  return first_refusal(supports_grouped(problem, kEngineSm90), supports_dense_rows(problem));
}

}  // namespace
}  // namespace conclave::experts::cuda

namespace conclave::parts {

Entry<Experts> experts_cuda_unfinalized_sm90();
Entry<Experts> experts_cuda_unfinalized_sm90() {
  Entry<Experts> entry;
  entry.name = "experts/cuda_unfinalized_sm90";
  entry.defers_finalize = true;
  entry.supports = experts::cuda::supports_unfinalized;
  entry.make = [name = entry.name](const PartContext& context) -> std::unique_ptr<Experts> {
    return std::make_unique<experts::cuda::UnfinalizedSm90>(name, context.problem, experts::cuda::kEngineSm90);
  };
  return entry;
}

}  // namespace conclave::parts
