// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: hidden states [M, H] bf16 or f16 on a Hopper GPU, ids and weights [M, k]. Out: [M, H], weighted and reduced.
// Four launches, five where rows are sorted first: tile map, GEMM1 with the activation, GEMM2, weighted sum. None waits
// for the host, so that the whole can be captured in a graph.
#include <fmt/format.h>

#include "base/error.hpp"
#include "base/round_up.hpp"
#include "conclave/registry.hpp"
#include "cuda/current_device.hpp"
#include "cuda/tensor_map.hpp"
#include "experts/activation.hpp"
#include "experts/cuda/check_input.hpp"
#include "experts/cuda/choose.hpp"
#include "experts/cuda/device_weights.hpp"
#include "experts/cuda/gather_rows.hpp"
#include "experts/cuda/gather_sum.hpp"
#include "experts/cuda/grouped_gemm.hpp"
#include "experts/cuda/pad_rows.hpp"
#include "experts/cuda/predict.hpp"
#include "experts/cuda/supports.hpp"
#include "experts/weights_check.hpp"

namespace conclave::experts::cuda {
namespace {

/// Rows of 16-bit elements begin at multiples of 16 bytes.
constexpr std::int64_t kAlignment = 8;
/// The narrowest tile: what the tile map must have room for, whatever tile a token count gets.
constexpr std::int64_t kFewestTileRows = 8;
constexpr std::int64_t kMaxExperts = 1024;

bool is_common(const ActivationFn& fn) {
  return fn.kind == Activation::silu || fn.kind == Activation::swigluoai ||
         fn.kind == Activation::swigluoai_uninterleave;
}

/// Everything in ExpertsBuffers::scratch.
struct Scratch {
  TileMap map;
  void* padded_input = nullptr;  ///< [M, padded H], where rows of the input are not multiples of 16 bytes.
  void* sorted_input = nullptr;  ///< [slots, padded H], where rows are sorted before GEMM1.
};

class GroupedSm90 final : public ModularExperts {
 public:
  GroupedSm90(std::string name, const Problem& problem)
      : name_(std::move(name)),
        problem_(problem),
        activation_(make_activation(problem.moe.activation, problem.moe.activation_params)),
        hidden_(round_up(problem.moe.expert_width(), kAlignment)),
        inner_(round_up(problem.moe.intermediate_size, kAlignment)) {}

  const std::string& name() const noexcept override { return name_; }
  bool supports_expert_map() const noexcept override { return true; }
  ExpertOutputKind output_kind() const noexcept override { return ExpertOutputKind::reduced; }
  WeightAndReduceKind finalize_weight_and_reduce() const noexcept override { return WeightAndReduceKind::no_op; }

  std::unique_ptr<PackedWeights> pack(const ExpertWeights& weights, Stream stream) const override {
    return std::make_unique<DeviceWeights>(name_, DeviceLayout{moe().dtype, kAlignment, true}, problem_, weights,
                                           stream);
  }
  void update(PackedWeights& packed, const ExpertWeights& weights, Stream stream) const override {
    packed_as<DeviceWeights>(packed, name_).assign(problem_, weights, stream);
  }

  ExpertsBuffers take_buffers(Arena& arena, std::int64_t num_tokens) const override;
  void apply(const ExpertsInput& input, const PackedWeights& packed, const ExpertsBuffers& buffers,
             Stream stream) const override;
  std::string describe(std::int64_t num_tokens) const override { return to_string(choose(sizes(), num_tokens)); }
  Forecast forecast(std::int64_t num_tokens) const override;

 private:
  const MoeConfig& moe() const noexcept { return problem_.moe; }
  GemmProblem sizes() const {
    return {.num_experts = moe().num_experts,
            .top_k = moe().num_slots(),
            .hidden_size = hidden_,
            .intermediate_size = inner_,
            .gated = activation_.gated,
            .num_multiprocessors = problem_.device.num_threads,
            .common_activation = is_common(activation_)};
  }
  Scratch take_scratch(Arena& arena, std::int64_t num_tokens) const;
  GroupedGemm first_product(const ExpertsInput& input, const DeviceWeights& weights, const Scratch& scratch,
                            const GemmChoice& choice, const TensorView& inner, Stream stream) const;

  std::string name_;
  Problem problem_;
  ActivationFn activation_;
  std::int64_t hidden_, inner_;
};

Forecast GroupedSm90::forecast(std::int64_t num_tokens) const {
  if (num_tokens == 0) return {};
  const DeviceFacts& device = problem_.device;
  // Tile map, two products, weighted sum; and a copy of the rows where they are padded or sorted.
  const int copies = (moe().expert_width() != hidden_ ? 1 : 0) + (choose(sizes(), num_tokens).sorts_rows ? 1 : 0);
  return {tile_map_launches(num_tokens * moe().num_slots()) + 3 + copies,
          predict_seconds(sizes(),
                          {device.bytes_per_second, moe().dtype == DType::bf16 ? device.bf16_flops : device.f16_flops},
                          num_tokens)};
}

Scratch GroupedSm90::take_scratch(Arena& arena, std::int64_t num_tokens) const {
  const std::int64_t slots = num_tokens * moe().num_slots();
  Scratch s;
  s.map = take_tile_map(arena, slots, moe().num_weight_experts(), kFewestTileRows);
  // Taken for every width: an input's row stride is known only when it comes.
  s.padded_input = arena.take(moe().dtype, {num_tokens, hidden_}).data;
  if (choose(sizes(), num_tokens).sorts_rows) s.sorted_input = arena.take(moe().dtype, {slots, hidden_}).data;
  return s;
}

ExpertsBuffers GroupedSm90::take_buffers(Arena& arena, std::int64_t num_tokens) const {
  const std::int64_t slots = num_tokens * moe().num_slots();
  require(slots <= INT32_MAX, "{}: {} tokens x {} slots, expected at most {} pairs", name_, num_tokens,
          moe().num_slots(), INT32_MAX);
  ExpertsBuffers buffers;
  // f16 cannot hold every sum that is still to be weighted.
  buffers.workspace13 = arena.take(moe().dtype == DType::f16 ? DType::f32 : moe().dtype, {slots, hidden_});
  buffers.workspace2 = arena.take(moe().dtype, {slots, inner_});
  buffers.output = arena.take(moe().dtype, {num_tokens, moe().expert_width()});
  Arena measure = Arena::measuring();
  take_scratch(measure, num_tokens);
  buffers.scratch = arena.take(DType::u8, {measure.used()});
  return buffers;
}

/// GEMM1's tokens: gathered from the input, or from a copy that is padded or sorted.
GroupedGemm GroupedSm90::first_product(const ExpertsInput& input, const DeviceWeights& weights, const Scratch& scratch,
                                       const GemmChoice& choice, const TensorView& inner, Stream stream) const {
  const auto queue = static_cast<cudaStream_t>(stream.native);
  const ConstTensorView& x = input.hidden_states;
  GroupedGemm work;
  work.tiles = scratch.map.tiles;
  work.num_tiles = scratch.map.num_tiles;
  work.weight_rows = static_cast<std::int32_t>(weights.w13_rows());
  work.depth = static_cast<std::int32_t>(hidden_);
  work.tokens = x.data;
  work.token_stride = x.size(0) > 1 ? x.stride(0) : hidden_;
  work.row_tokens = scratch.map.row_tokens;
  work.out = inner.data;
  work.out_stride = inner_;
  work.bias = weights.w13_bias();
  work.activation = activation_;
  const bool aligned = moe().expert_width() == hidden_ && work.token_stride % kAlignment == 0 &&
                       reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0;
  if (!aligned) {
    pad_rows({x.data, work.token_stride, scratch.padded_input, x.size(0), moe().expert_width(), hidden_}, queue);
    work.tokens = scratch.padded_input;
    work.token_stride = hidden_;
  }
  if (choice.sorts_rows) {
    gather_rows(
        {work.tokens, work.token_stride, scratch.sorted_input, hidden_, work.row_tokens, work.tiles, work.num_tiles},
        problem_.device.num_threads, queue);
    work.tokens = nullptr;
    work.row_tokens = nullptr;
  }
  return work;
}

void GroupedSm90::apply(const ExpertsInput& input, const PackedWeights& packed, const ExpertsBuffers& buffers,
                        Stream stream) const {
  const auto& weights = packed_as<const DeviceWeights>(packed, name_);
  check_input(name_, problem_, input, buffers, stream);
  const std::int64_t num_tokens = input.hidden_states.size(0);
  if (num_tokens == 0) return;
  const conclave::cuda::CurrentDevice current(stream.device);
  const auto queue = static_cast<cudaStream_t>(stream.native);
  const std::int64_t slots = num_tokens * moe().num_slots();
  const auto num_local = static_cast<std::int32_t>(weights.num_local_experts());
  const GemmChoice choice = choose(sizes(), num_tokens);
  const GemmTile tile = choice.tile;
  const int blocks = problem_.device.num_threads;

  Arena arena({buffers.scratch.as<std::byte>(), static_cast<std::size_t>(buffers.scratch.bytes())}, stream.device);
  const Scratch scratch = take_scratch(arena, num_tokens);
  const auto num_ids = static_cast<std::int32_t>(input.expert_map ? input.expert_map->size(0) : num_local);
  build_tile_map({input.topk_ids.as<std::int32_t>(), input.expert_map ? input.expert_map->as<std::int32_t>() : nullptr,
                  static_cast<std::int32_t>(slots), static_cast<std::int32_t>(moe().num_slots()), num_ids, num_local,
                  tile.map_rows(), !tile.token_rows},
                 scratch.map, queue);
  if (num_local > 0) {
    GroupedGemm work = first_product(input, weights, scratch, choice, buffers.workspace2, stream);
    const auto map_of = [&](const void* rows, std::int64_t columns) {
      return conclave::cuda::tensor_map_2d(rows, moe().dtype, slots, columns, columns, tile.tokens);
    };
    const auto weights_map = [&](const void* matrix, std::int64_t rows, std::int64_t columns, const GemmTile& of) {
      return conclave::cuda::tensor_map_3d(matrix, moe().dtype, num_local, rows, columns, columns, of.box_rows());
    };
    const CUtensorMap inner = map_of(buffers.workspace2.data, inner_);
    const CUtensorMap sorted = choice.sorts_rows ? map_of(scratch.sorted_input, hidden_) : inner;
    const Epilogue after = is_common(activation_) ? Epilogue::swiglu
                           : activation_.gated    ? Epilogue::gated
                                                  : Epilogue::plain;
    grouped_gemm(weights_map(weights.w13(), weights.w13_rows(), hidden_, tile), sorted, work, tile, after, moe().dtype,
                 blocks, queue);
    work.weight_rows = static_cast<std::int32_t>(hidden_);
    work.depth = static_cast<std::int32_t>(inner_);
    work.tokens = nullptr;
    work.row_tokens = nullptr;
    work.out = buffers.workspace13.data;
    work.out_stride = hidden_;
    work.bias = weights.w2_bias();
    grouped_gemm(weights_map(weights.w2(), hidden_, inner_, choice.second), inner, work, choice.second,
                 Epilogue::linear, moe().dtype, blocks, queue);
  }
  gather_sum({buffers.workspace13.data, hidden_, scratch.map.slot_rows,
              input.router_weight_applied ? nullptr : input.topk_weights.as<float>(), buffers.output.data,
              num_tokens > 1 ? buffers.output.stride(0) : moe().expert_width(), static_cast<std::int32_t>(num_tokens),
              static_cast<std::int32_t>(moe().num_slots()), static_cast<std::int32_t>(moe().expert_width())},
             moe().dtype, queue);
}

Support supports(const Problem& problem) {
  const MoeConfig& c = problem.moe;
  if (const Support base = supports_unquantized_on_cuda(problem); !base) return base;
  if (problem.device.compute_capability != 90)
    return Support::no(fmt::format("compute capability {}.{}, it uses instructions of 9.0 alone",
                                   problem.device.compute_capability / 10, problem.device.compute_capability % 10));
  if (c.dtype != DType::bf16 && c.dtype != DType::f16)
    return Support::no(fmt::format("dtype {}, it takes bf16 or f16", name_of(c.dtype)));
  if (c.weight_dtype != c.dtype)
    return Support::no(fmt::format("weight_dtype {}, it takes that of the activations, {}", name_of(c.weight_dtype),
                                   name_of(c.dtype)));
  if (c.num_weight_experts() > kMaxExperts)
    return Support::no(fmt::format("num_experts {}, it takes at most {}", c.num_weight_experts(), kMaxExperts));
  return Support::yes();
}

}  // namespace
}  // namespace conclave::experts::cuda

namespace conclave::parts {

Entry<Experts> experts_cuda_grouped_sm90();
Entry<Experts> experts_cuda_grouped_sm90() {
  Entry<Experts> entry;
  entry.name = "experts/cuda_grouped_sm90";
  entry.supports = experts::cuda::supports;
  entry.make = [name = entry.name](const PartContext& context) -> std::unique_ptr<Experts> {
    return std::make_unique<experts::cuda::GroupedSm90>(name, context.problem);
  };
  return entry;
}

}  // namespace conclave::parts
