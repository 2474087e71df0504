// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// sorted_experts.hpp: three launches, four where rows are sorted first. None waits for the host, so that the whole can
// be captured in a graph.
#include "experts/cuda/sorted_experts.hpp"

#include "base/error.hpp"
#include "experts/cuda/gather_rows.hpp"

namespace conclave::experts::cuda {

std::int64_t SortedExperts::slots_of(std::int64_t num_tokens) const {
  const std::int64_t slots = num_tokens * moe().num_slots();
  require(slots <= INT32_MAX, "{}: {} tokens x {} slots, expected at most {} pairs", name(), num_tokens,
          moe().num_slots(), INT32_MAX);
  return slots;
}

SortedExperts::Scratch SortedExperts::take_scratch(Arena& arena, std::int64_t num_tokens) const {
  const std::int64_t slots = slots_of(num_tokens);
  Scratch s;
  s.map = take_tile_map(arena, slots, moe().num_weight_experts(), kFewestTileRows);
  // Taken for every width: an input's row stride is known only when it comes.
  s.padded_input = arena.take(moe().dtype, {num_tokens, hidden()}).data;
  if (choice_for(num_tokens).sorts_rows) s.sorted_input = arena.take(moe().dtype, {slots, hidden()}).data;
  return s;
}

void SortedExperts::sorted_products(const ExpertsInput& input, const DeviceWeights& weights, const Scratch& scratch,
                                    const TensorView& inner, const TensorView& rows, Stream stream) const {
  const auto queue = static_cast<cudaStream_t>(stream.native);
  const ConstTensorView& x = input.hidden_states;
  const auto num_local = static_cast<std::int32_t>(weights.num_local_experts());
  const auto num_ids = static_cast<std::int32_t>(input.expert_map ? input.expert_map->size(0) : num_local);
  const GemmChoice choice = choice_for(x.size(0));
  Products work;
  work.map = scratch.map;
  work.rows = slots_of(x.size(0));
  work.inner = inner.data;
  work.out = rows.data;
  build_tile_map({input.topk_ids.as<std::int32_t>(), input.expert_map ? input.expert_map->as<std::int32_t>() : nullptr,
                  static_cast<std::int32_t>(work.rows), static_cast<std::int32_t>(moe().num_slots()), num_ids,
                  num_local, heights_of(choice)},
                 scratch.map, queue);
  if (num_local == 0) return;
  work.tokens = aligned(x.data, x.size(0) > 1 ? x.stride(0) : hidden(), x.size(0), scratch.padded_input, stream);
  if (choice.sorts_rows) {
    gather_rows({work.tokens.rows, work.tokens.stride, scratch.sorted_input, hidden(), work.map.row_tokens,
                 work.map.tiles, work.map.num_tiles},
                problem().device.num_threads, queue);
    work.sorted = scratch.sorted_input;
  }
  products(work, weights, choice, stream);
}

}  // namespace conclave::experts::cuda
