// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: hidden states [M, H], ids [M, k]. Out: f32 rows [M, k, H], unweighted; zeros where a slot is empty or remote.
#include "base/slot_lookup.hpp"
#include "base/tensor_format.hpp"
#include "conclave/registry.hpp"
#include "experts/plain_experts.hpp"
#include "experts/reference/rows.hpp"
#include "experts/supports.hpp"

namespace conclave {
namespace experts::reference {
namespace {

class Standard final : public PlainExperts<ModularExperts> {
 public:
  using PlainExperts::PlainExperts;

  ExpertOutputKind output_kind() const noexcept override { return ExpertOutputKind::unreduced_standard; }
  WeightAndReduceKind finalize_weight_and_reduce() const noexcept override { return WeightAndReduceKind::contiguous; }

  ExpertsBuffers take_buffers(Arena& arena, std::int64_t num_tokens) const override {
    ExpertsBuffers buffers;
    const std::int64_t num_rows = num_tokens * moe().num_slots();
    take_row_workspaces(arena, moe(), num_rows, buffers);
    buffers.scratch = arena.take(DType::u8, {input_bytes(moe(), num_rows)});
    buffers.output = arena.take(DType::f32, {num_tokens, moe().num_slots(), hidden_size()});
    return buffers;
  }

  void apply(const ExpertsInput& input, const PackedWeights& packed, const ExpertsBuffers& buffers,
             Stream stream) const override {
    const PlainWeights& weights = plain(packed);
    const bool coded = check_codes(input.hidden_states, input.scales, 2);
    if (!coded) check_hidden_states(input.hidden_states, 2);
    const std::int64_t num_local = weights.num_local_experts();
    const std::int64_t num_experts = input.expert_map ? input.expert_map->size(0) : num_local;
    const SlotLookup slot_of(input.topk_ids, input.expert_map, num_experts, num_local);
    require(slot_of.num_tokens() == input.hidden_states.size(0),
            "topk_ids: given {}, expected {} rows as hidden_states", input.topk_ids, input.hidden_states.size(0));
    RowRunner runner(moe(), activation(), weights, row_buffers(buffers, moe(), buffers.scratch.data), *stream.executor);
    const auto add_rows = [&] {
      for (std::int64_t token = 0; token < slot_of.num_tokens(); ++token)
        for (std::int64_t pick = 0; pick < slot_of.top_k(); ++pick) {
          const std::int64_t slot = slot_of(token, pick);
          auto* output = buffers.output.at(token).at(pick).as<float>();
          if (slot < 0) {
            std::fill_n(output, hidden_size(), 0.0f);
          } else {
            Row row{.input = input.hidden_states.at(token).data, .expert = slot, .output = output};
            if (coded) row.set_scales(input.scales->at(token));
            runner.add(row);
          }
        }
    };
    runner.measure(add_rows);
    add_rows();
    runner.flush();
  }

  std::string describe(std::int64_t /*num_tokens*/) const override {
    return "one dot product for each element, waves of 64 rows";
  }
};

}  // namespace
}  // namespace experts::reference

namespace parts {

Entry<Experts> experts_reference_standard();
Entry<Experts> experts_reference_standard() {
  const std::string name = "experts/reference_standard";
  return {.name = name,
          .supports = experts::supports_all_on_cpu,
          .make = [name](const PartContext& context) -> std::unique_ptr<Experts> {
            return std::make_unique<experts::reference::Standard>(name, context.problem);
          }};
}

}  // namespace parts
}  // namespace conclave
