// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: hidden states [E_local, T, H] of which the first counts[e] rows of expert e are valid. Out: f32 rows of the same
// shape, unweighted; zeros behind the valid ones.
#include <algorithm>

#include "conclave/registry.hpp"
#include "experts/batched_input.hpp"
#include "experts/plain_experts.hpp"
#include "experts/reference/rows.hpp"
#include "experts/supports.hpp"

namespace conclave {
namespace experts::reference {
namespace {

class Batched final : public PlainExperts<ModularExperts> {
 public:
  using PlainExperts::PlainExperts;

  ActivationFormat activation_format() const noexcept override { return ActivationFormat::batched_experts; }
  ExpertOutputKind output_kind() const noexcept override { return ExpertOutputKind::unreduced_batched; }
  WeightAndReduceKind finalize_weight_and_reduce() const noexcept override { return WeightAndReduceKind::delegate; }

  ExpertsBuffers take_buffers(Arena& arena, std::int64_t num_tokens) const override {
    ExpertsBuffers buffers;
    const std::int64_t num_local = num_local_experts(problem());
    const std::int64_t num_rows = num_tokens * num_local;
    take_row_workspaces(arena, moe(), num_rows, buffers);
    buffers.scratch = arena.take(DType::u8, {input_bytes(moe(), num_rows)});
    buffers.output = arena.take(DType::f32, {num_local, num_tokens, hidden_size()});
    return buffers;
  }

  void apply(const ExpertsInput& input, const PackedWeights& packed, const ExpertsBuffers& buffers,
             Stream stream) const override {
    const PlainWeights& weights = plain(packed);
    const bool coded = check_codes(input.hidden_states, input.scales, 3);
    if (!coded) check_hidden_states(input.hidden_states, 3);
    const std::span<const std::int32_t> counts = batched_counts(input, weights, buffers.output);
    RowRunner runner(moe(), activation(), weights, row_buffers(buffers, moe(), buffers.scratch.data), *stream.executor);
    const auto add_rows = [&] {
      for (std::int64_t e = 0; e < buffers.output.size(0); ++e) {
        const std::int64_t valid = valid_rows(counts, weights, e, buffers.output.size(1));
        for (std::int64_t row = 0; row < buffers.output.size(1); ++row) {
          auto* output = buffers.output.at(e).at(row).as<float>();
          if (row < valid) {
            Row from{.input = input.hidden_states.at(e).at(row).data, .expert = e, .output = output};
            if (coded) from.set_scales(input.scales->at(e).at(row));
            runner.add(from);
          } else {
            std::fill_n(output, hidden_size(), 0.0f);
          }
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

Entry<Experts> experts_reference_batched();
Entry<Experts> experts_reference_batched() {
  const std::string name = "experts/reference_batched";
  return {.name = name,
          .format = ActivationFormat::batched_experts,
          .supports = experts::supports_all_on_cpu,
          .make = [name](const PartContext& context) -> std::unique_ptr<Experts> {
            return std::make_unique<experts::reference::Batched>(name, context.problem);
          }};
}

}  // namespace parts
}  // namespace conclave
