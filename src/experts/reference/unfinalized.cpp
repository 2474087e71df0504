// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: hidden states [M, H], ids and weights [M, k]. Out: UnfinalizedMoeOutput: the f32 rows after the second product,
// sorted by expert and dense, with the map that finds them; nobody has weighted or summed them.
#include <algorithm>

#include "base/slot_lookup.hpp"
#include "base/tensor_format.hpp"
#include "conclave/registry.hpp"
#include "cpu/float_convert.hpp"
#include "experts/plain_experts.hpp"
#include "experts/reference/rows.hpp"
#include "experts/supports.hpp"

namespace conclave {
namespace experts::reference {
namespace {

/// What the scratch buffer holds.
struct OpenScratch {
  /// f32 [M, k], as routers give them: in a narrower type they would be rounded, as no other part's are.
  TensorView weights;
  TensorView map;    ///< i32 [M, k]
  TensorView first;  ///< i32 [E + 1]: the next row of each expert
  TensorView input;  ///< f32 [rows, H]: inputs of a wave
};

class Unfinalized final : public PlainExperts<ModularExperts> {
 public:
  using PlainExperts::PlainExperts;

  ExpertOutputKind output_kind() const noexcept override { return ExpertOutputKind::unfinalized; }
  WeightAndReduceKind finalize_weight_and_reduce() const noexcept override { return WeightAndReduceKind::delegate; }

  ExpertsBuffers take_buffers(Arena& arena, std::int64_t num_tokens) const override {
    ExpertsBuffers buffers;
    const std::int64_t num_rows = num_tokens * moe().num_slots();
    require(num_rows <= INT32_MAX, "{}: {} rows for {} tokens, expected at most {}, which i32 indices reach", name(),
            num_rows, num_tokens, INT32_MAX);
    take_row_workspaces(arena, moe(), num_rows, buffers);
    Arena inside = Arena::measuring(Device{});
    carve(inside, num_tokens);
    buffers.scratch = arena.take(DType::u8, {inside.peak()});
    buffers.output = arena.take(DType::f32, {num_rows, hidden_size()});
    return buffers;
  }

  void apply(const ExpertsInput& input, const PackedWeights& packed, const ExpertsBuffers& buffers,
             Stream stream) const override {
    const PlainWeights& weights = plain(packed);
    const bool coded = check_codes(input.hidden_states, input.scales, 2);
    if (!coded) check_hidden_states(input.hidden_states, 2);
    const std::int64_t num_local = weights.num_local_experts();
    require(num_local <= moe().num_weight_experts(), "weights: given {} experts, expected at most {}", num_local,
            moe().num_weight_experts());
    const std::int64_t num_experts = input.expert_map ? input.expert_map->size(0) : num_local;
    const SlotLookup slot_of(input.topk_ids, input.expert_map, num_experts, num_local);
    require(slot_of.num_tokens() == input.hidden_states.size(0) && slot_of.top_k() == moe().num_slots(),
            "topk_ids: given {}, expected [{}, {}]", input.topk_ids, input.hidden_states.size(0), moe().num_slots());
    const OpenScratch scratch = scratch_of(buffers);
    const std::int64_t used = permute(slot_of, scratch);
    copy_weights(input, scratch);

    RowRunner runner(moe(), activation(), weights, row_buffers(buffers, moe(), scratch.input.data), *stream.executor);
    const auto add_rows = [&] {
      for (std::int64_t token = 0; token < slot_of.num_tokens(); ++token)
        for (std::int64_t pick = 0; pick < slot_of.top_k(); ++pick) {
          const std::int64_t row = scratch.map.at(token).as<std::int32_t>()[pick];
          if (row < 0) continue;
          Row from{.input = input.hidden_states.at(token).data,
                   .expert = slot_of(token, pick),
                   .output = buffers.output.at(row).as<float>()};
          if (coded) from.set_scales(input.scales->at(token));
          runner.add(from);
        }
    };
    runner.measure(add_rows);
    add_rows();
    runner.flush();
    for (std::int64_t row = used; row < buffers.output.size(0); ++row)
      std::fill_n(buffers.output.at(row).as<float>(), hidden_size(), 0.0F);
  }

  UnfinalizedMoeOutput unfinalized_output(const ExpertsBuffers& buffers) const override {
    const OpenScratch scratch = scratch_of(buffers);
    return {buffers.output, scratch.weights, scratch.map};
  }

  std::string describe(std::int64_t /*num_tokens*/) const override {
    return "one dot product for each element, waves of 64 rows, reduction left open";
  }

 private:
  OpenScratch carve(Arena& arena, std::int64_t num_tokens) const {
    const std::int64_t slots = moe().num_slots();
    OpenScratch scratch;
    scratch.weights = arena.take(DType::f32, {num_tokens, slots});
    scratch.map = arena.take(DType::i32, {num_tokens, slots});
    scratch.first = arena.take(DType::i32, {moe().num_weight_experts() + 1});
    scratch.input = arena.take(DType::f32, {rows_in_wave(num_tokens * slots), hidden_size()});
    return scratch;
  }
  OpenScratch scratch_of(const ExpertsBuffers& buffers) const {
    Arena inside(std::span(buffers.scratch.as<std::byte>(), static_cast<std::size_t>(buffers.scratch.bytes())),
                 Device{});
    return carve(inside, buffers.output.size(0) / moe().num_slots());
  }

  /// Rows in the order of (expert, token, pick), without gaps. Returns how many there are.
  static std::int64_t permute(const SlotLookup& slot_of, const OpenScratch& scratch) {
    auto* first = scratch.first.as<std::int32_t>();
    std::fill_n(first, scratch.first.size(0), 0);
    const auto each = [&](auto&& visit) {
      for (std::int64_t token = 0; token < slot_of.num_tokens(); ++token)
        for (std::int64_t pick = 0; pick < slot_of.top_k(); ++pick)
          visit(slot_of(token, pick), scratch.map.at(token).as<std::int32_t>()[pick]);
    };
    each([&](std::int64_t slot, std::int32_t&) {
      if (slot >= 0) ++first[slot + 1];
    });
    for (std::int64_t e = 1; e < scratch.first.size(0); ++e) first[e] += first[e - 1];
    const std::int64_t used = first[scratch.first.size(0) - 1];
    each([&](std::int64_t slot, std::int32_t& row) { row = slot < 0 ? -1 : first[slot]++; });
    return used;
  }

  /// A weight that the input carries already must not be applied again.
  static void copy_weights(const ExpertsInput& input, const OpenScratch& scratch) {
    const ConstTensorView& from = input.topk_weights;
    for (std::int64_t token = 0; token < scratch.weights.size(0); ++token)
      for (std::int64_t pick = 0; pick < scratch.weights.size(1); ++pick) {
        const float weight =
            input.router_weight_applied
                ? 1.0F
                : cpu::load_element(from.data, from.dtype, token * from.stride(0) + pick * from.stride(1));
        cpu::store_element(weight, scratch.weights.dtype, token * scratch.weights.stride(0) + pick,
                           scratch.weights.data);
      }
  }
};

}  // namespace
}  // namespace experts::reference

namespace parts {

Entry<Experts> experts_reference_unfinalized();
Entry<Experts> experts_reference_unfinalized() {
  const std::string name = "experts/reference_unfinalized";
  return {.name = name,
          .defers_finalize = true,
          .supports = experts::supports_all_on_cpu,
          .make = [name](const PartContext& context) -> std::unique_ptr<Experts> {
            return std::make_unique<experts::reference::Unfinalized>(name, context.problem);
          }};
}

}  // namespace parts
}  // namespace conclave
