// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: hidden states [E_local, T, H] bf16 or f16 on a Hopper GPU, of which the first counts[e] rows of expert e are
// valid; the counts stay on the GPU. Out: rows of the same shape, unweighted, f32 where the layer is f16. Rows behind
// the counts are neither computed nor written. Three launches: tile map, GEMM1 with the activation, GEMM2.
#include "base/error.hpp"
#include "base/local_experts.hpp"
#include "base/tensor_format.hpp"
#include "conclave/registry.hpp"
#include "cuda/current_device.hpp"
#include "experts/cuda/check_input.hpp"
#include "experts/cuda/grouped_experts.hpp"
#include "experts/weights_check.hpp"

namespace conclave::experts::cuda {
namespace {

struct BatchedScratch {
  TileMap map;
  void* padded_input = nullptr;  ///< [E_local T, padded H], where rows of the input are not multiples of 16 bytes.
};

class BatchedSm90 final : public GroupedExperts {
 public:
  using GroupedExperts::GroupedExperts;

  ActivationFormat activation_format() const noexcept override { return ActivationFormat::batched_experts; }
  ExpertOutputKind output_kind() const noexcept override { return ExpertOutputKind::unreduced_batched; }
  WeightAndReduceKind finalize_weight_and_reduce() const noexcept override { return WeightAndReduceKind::delegate; }
  std::string describe(std::int64_t num_tokens) const override {
    return to_string(tiles_for(num_tokens)) + ", masked by counts";
  }

  ExpertsBuffers take_buffers(Arena& arena, std::int64_t num_tokens) const override {
    const std::int64_t experts = num_local_experts(problem());
    ExpertsBuffers buffers;
    buffers.workspace2 = arena.take(moe().dtype, {experts * num_tokens, inner()});
    // Rows begin at multiples of 16 bytes, whatever the width.
    buffers.output = arena.take(row_dtype(), {experts, num_tokens, hidden()}).narrow(2, 0, moe().expert_width());
    Arena measure = Arena::measuring();
    take_scratch(measure, num_tokens);
    buffers.scratch = arena.take(DType::u8, {measure.used()});
    return buffers;
  }

  void apply(const ExpertsInput& input, const PackedWeights& packed, const ExpertsBuffers& buffers,
             Stream stream) const override {
    const auto& weights = packed_as<const DeviceWeights>(packed, name());
    check_batched_input(name(), problem(), input, weights, stream);
    const ConstTensorView& x = input.hidden_states;
    const std::int64_t max_rows = x.size(1);
    const auto num_local = static_cast<std::int32_t>(weights.num_local_experts());
    if (max_rows == 0 || num_local == 0) return;
    require(pads() || (x.stride(1) % 8 == 0 && reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0),
            "{}: hidden_states: given {} at {}, expected rows that begin at multiples of 16 bytes", name(), x, x.data);
    const conclave::cuda::CurrentDevice current(stream.device);
    Arena arena({buffers.scratch.as<std::byte>(), static_cast<std::size_t>(buffers.scratch.bytes())}, stream.device);
    const BatchedScratch scratch = take_scratch(arena, max_rows);
    const GemmChoice choice = tiles_for(max_rows);
    build_counted_map({input.expert_tokens->counts.as<std::int32_t>(), num_local, static_cast<std::int32_t>(max_rows),
                       heights_of(choice)},
                      scratch.map, static_cast<cudaStream_t>(stream.native));
    Products work;
    work.map = scratch.map;
    work.rows = x.size(0) * max_rows;
    work.tokens = aligned(x.data, x.stride(1), work.rows, scratch.padded_input, stream);
    work.inner = buffers.workspace2.data;
    work.out = buffers.output.data;
    products(work, weights, choice, stream);
  }

 private:
  bool pads() const noexcept { return moe().expert_width() != hidden(); }

  BatchedScratch take_scratch(Arena& arena, std::int64_t num_tokens) const {
    const std::int64_t experts = num_local_experts(problem());
    BatchedScratch s;
    s.map = take_counted_map(arena, experts, num_tokens, kFewestTileRows);
    if (pads()) s.padded_input = arena.take(moe().dtype, {experts * num_tokens, hidden()}).data;
    return s;
  }

  /// For `num_tokens` slots of each expert, filled as if that many tokens had been routed evenly. Pairs of blocks take
  /// rows by whole boxes, which must be requested before the map is there; here nothing runs between the two.
  GemmChoice tiles_for(std::int64_t num_tokens) const {
    GemmChoice choice = choice_for(num_tokens);
    if (choice.sorts_rows) {
      choice.tile = choice.second = {.tokens = 128, .weight_rows = 256, .blocks = 1};
      choice.sorts_rows = false;
    }
    return choice;
  }
};

}  // namespace
}  // namespace conclave::experts::cuda

namespace conclave::parts {

Entry<Experts> experts_cuda_batched_sm90();
Entry<Experts> experts_cuda_batched_sm90() {
  Entry<Experts> entry;
  entry.name = "experts/cuda_batched_sm90";
  entry.format = ActivationFormat::batched_experts;
  entry.supports = [](const Problem& problem) {
    return experts::cuda::supports_grouped(problem, experts::cuda::kEngineSm90);
  };
  entry.make = [name = entry.name](const PartContext& context) -> std::unique_ptr<Experts> {
    return std::make_unique<experts::cuda::BatchedSm90>(name, context.problem, experts::cuda::kEngineSm90);
  };
  return entry;
}

}  // namespace conclave::parts
