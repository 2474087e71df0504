// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// summed_experts.hpp. Four launches, five where rows are sorted first: tile map, GEMM1 with the activation, GEMM2,
// weighted sum. None waits for the host, so that the whole can be captured in a graph.
#include "experts/cuda/summed_experts.hpp"

#include "cuda/current_device.hpp"
#include "experts/cuda/check_input.hpp"
#include "experts/cuda/gather_sum.hpp"
#include "experts/cuda/sorted_experts.hpp"
#include "experts/weights_check.hpp"

namespace conclave::experts::cuda {
namespace {

class SummedExperts final : public SortedExperts {
 public:
  using SortedExperts::SortedExperts;

  ExpertOutputKind output_kind() const noexcept override { return ExpertOutputKind::reduced; }
  WeightAndReduceKind finalize_weight_and_reduce() const noexcept override { return WeightAndReduceKind::no_op; }

  ExpertsBuffers take_buffers(Arena& arena, std::int64_t num_tokens) const override {
    const std::int64_t slots = slots_of(num_tokens);
    ExpertsBuffers buffers;
    buffers.workspace13 = arena.take(row_dtype(), {slots, hidden()});
    buffers.workspace2 = arena.take(moe().dtype, {slots, inner()});
    buffers.output = arena.take(moe().dtype, {num_tokens, moe().expert_width()});
    Arena measure = Arena::measuring();
    take_scratch(measure, num_tokens);
    buffers.scratch = arena.take(DType::u8, {measure.used()});
    return buffers;
  }

  Forecast forecast(std::int64_t num_tokens) const override {
    if (num_tokens == 0) return {};
    // Tile map, two products, weighted sum; and a copy of the rows where they are padded or sorted.
    const int copies = (moe().expert_width() != hidden() ? 1 : 0) + (choice_for(num_tokens).sorts_rows ? 1 : 0);
    return {tile_map_launches(slots_of(num_tokens)) + 3 + copies, predicted_seconds(num_tokens)};
  }

  void apply(const ExpertsInput& input, const PackedWeights& packed, const ExpertsBuffers& buffers,
             Stream stream) const override {
    const auto& weights = packed_as<const DeviceWeights>(packed, name());
    check_input(name(), problem(), input, buffers, stream);
    const std::int64_t num_tokens = input.hidden_states.size(0);
    if (num_tokens == 0) return;
    const conclave::cuda::CurrentDevice current(stream.device);
    Arena arena({buffers.scratch.as<std::byte>(), static_cast<std::size_t>(buffers.scratch.bytes())}, stream.device);
    const Scratch scratch = take_scratch(arena, num_tokens);
    sorted_products(input, weights, scratch, buffers.workspace2, buffers.workspace13, stream);
    gather_sum({buffers.workspace13.data, hidden(), scratch.map.slot_rows,
                input.router_weight_applied ? nullptr : input.topk_weights.as<float>(), buffers.output.data,
                num_tokens > 1 ? buffers.output.stride(0) : moe().expert_width(), static_cast<std::int32_t>(num_tokens),
                static_cast<std::int32_t>(moe().num_slots()), static_cast<std::int32_t>(moe().expert_width())},
               moe().dtype, static_cast<cudaStream_t>(stream.native));
  }
};

}  // namespace

std::unique_ptr<Experts> make_summed_experts(std::string name, const Problem& problem, const GroupedEngine& engine) {
  return std::make_unique<SummedExperts>(std::move(name), problem, engine);
}

}  // namespace conclave::experts::cuda
