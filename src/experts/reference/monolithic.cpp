// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: hidden states [M, H] and router logits. Out: the routed output [M, H] in moe.dtype, weighted and summed over k.
// Calls the router part, then computes a few tokens at a time, so that [M, k, H] never exists.
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
struct Scratch {
  TensorView ids;      ///< i32 [M, k]
  TensorView weights;  ///< f32 [M, k]
  TensorView input;    ///< f32 [rows, H]: inputs of a wave
  TensorView rows;     ///< f32 [rows, H]: outputs of a wave
};

class Monolithic final : public PlainExperts<MonolithicExperts> {
 public:
  Monolithic(std::string name, const PartContext& context)
      : PlainExperts(std::move(name), context.problem), router_(context.router) {
    require(router_ != nullptr, "{}: given no router, expected the one of the plan", this->name());
  }

  ExpertOutputKind output_kind() const noexcept override { return ExpertOutputKind::reduced; }

  ExpertsBuffers take_buffers(Arena& arena, std::int64_t num_tokens) const override {
    ExpertsBuffers buffers;
    take_row_workspaces(arena, moe(), tokens_in_wave(num_tokens) * top_k(), buffers);
    Arena inside = Arena::measuring(Device{});
    const Scratch scratch = carve(inside, num_tokens);
    router_->plan_scratch(inside, num_tokens);
    buffers.scratch = arena.take(DType::u8, {inside.peak()});
    buffers.output = arena.take(moe().dtype, {num_tokens, scratch.rows.size(1)});
    return buffers;
  }

  void apply(const MonolithicInput& input, const PackedWeights& packed, const ExpertsBuffers& buffers,
             Stream stream) const override {
    const PlainWeights& weights = plain(packed);
    check_hidden_states(input.hidden_states, 2);
    const std::int64_t num_tokens = input.hidden_states.size(0);
    Arena inside(std::span(buffers.scratch.as<std::byte>(), static_cast<std::size_t>(buffers.scratch.bytes())),
                 Device{});
    const Scratch scratch = carve(inside, num_tokens);
    router_->route(input.router, {scratch.ids, scratch.weights}, inside, stream);
    if (input.captured) capture(scratch, *input.captured);

    const std::int64_t num_local = weights.num_local_experts();
    const SlotLookup slot_of(scratch.ids, input.expert_map, input.expert_map ? input.expert_map->size(0) : num_local,
                             num_local);
    RowRunner runner(moe(), activation(), weights, row_buffers(buffers, moe(), scratch.input.data), *stream.executor);
    const std::int64_t wave = tokens_in_wave(num_tokens);
    const auto add_wave = [&](std::int64_t first) {
      const std::int64_t last = std::min(first + wave, num_tokens);
      for (std::int64_t token = first; token < last; ++token) add_token(input, scratch, slot_of, token, first, runner);
      runner.flush();  // The buffers hold no more than one wave.
      return last;
    };
    runner.measure([&] {
      for (std::int64_t first = 0; first < num_tokens; first += wave) add_wave(first);
    });
    for (std::int64_t first = 0; first < num_tokens; first += wave) {
      const std::int64_t last = add_wave(first);
      for (std::int64_t token = first; token < last; ++token)
        sum_token(scratch, slot_of, token, first, buffers.output.at(token));
    }
  }

  std::string describe(std::int64_t /*num_tokens*/) const override {
    return "router inside, one dot product for each element, waves of 64 rows";
  }

 private:
  std::int64_t top_k() const noexcept { return moe().num_slots(); }

  /// Whole tokens, so that a token's rows can be summed as soon as its wave is done.
  std::int64_t tokens_in_wave(std::int64_t num_tokens) const {
    return std::min(num_tokens, std::max<std::int64_t>(1, kWaveRows / top_k()));
  }

  Scratch carve(Arena& arena, std::int64_t num_tokens) const {
    const std::int64_t rows = tokens_in_wave(num_tokens) * top_k();
    Scratch scratch;
    scratch.ids = arena.take(DType::i32, {num_tokens, top_k()});
    scratch.weights = arena.take(DType::f32, {num_tokens, top_k()});
    scratch.input = arena.take(DType::f32, {rows_in_wave(rows), hidden_size()});
    scratch.rows = arena.take(DType::f32, {rows, hidden_size()});
    return scratch;
  }

  float* row_of(const Scratch& scratch, std::int64_t token, std::int64_t first, std::int64_t pick) const {
    return scratch.rows.at((token - first) * top_k() + pick).as<float>();
  }
  float weight_of(const Scratch& scratch, std::int64_t token, std::int64_t pick) const {
    return scratch.weights.at(token).as<float>()[pick];
  }

  void add_token(const MonolithicInput& input, const Scratch& scratch, const SlotLookup& slot_of, std::int64_t token,
                 std::int64_t first, RowRunner& runner) const {
    for (std::int64_t pick = 0; pick < top_k(); ++pick) {
      const std::int64_t slot = slot_of(token, pick);
      if (slot < 0) continue;
      Row row{
          .input = input.hidden_states.at(token).data, .expert = slot, .output = row_of(scratch, token, first, pick)};
      if (moe().apply_router_weight_on_input) row.input_weight = weight_of(scratch, token, pick);
      runner.add(row);
    }
  }

  void sum_token(const Scratch& scratch, const SlotLookup& slot_of, std::int64_t token, std::int64_t first,
                 const TensorView& output) const {
    for (std::int64_t h = 0; h < hidden_size(); ++h) {
      float sum = 0.0f;
      for (std::int64_t pick = 0; pick < top_k(); ++pick) {
        const float weight = moe().apply_router_weight_on_input ? 1.0f : weight_of(scratch, token, pick);
        if (slot_of(token, pick) < 0 || weight == 0.0f) continue;  // A zero weight skips: 0 * NaN must not leak.
        sum += weight * row_of(scratch, token, first, pick)[h];
      }
      cpu::store_element(sum, output.dtype, h * output.stride(0), output.data);
    }
  }

  void capture(const Scratch& scratch, const Routing& to) const {
    require(to.topk_ids.dtype == DType::i32 || to.topk_ids.dtype == DType::i64,
            "captured ids: given {}, expected i32 or i64", to.topk_ids);
    require(to.topk_weights.dtype == DType::f32, "captured weights: given {}, expected f32", to.topk_weights);
    for (std::int64_t token = 0; token < scratch.ids.size(0); ++token)
      for (std::int64_t pick = 0; pick < top_k(); ++pick) {
        const std::int32_t id = scratch.ids.at(token).as<std::int32_t>()[pick];
        const std::int64_t at = token * to.topk_ids.stride(0) + pick * to.topk_ids.stride(1);
        if (to.topk_ids.dtype == DType::i32) {
          to.topk_ids.as<std::int32_t>()[at] = id;
        } else {
          to.topk_ids.as<std::int64_t>()[at] = id;
        }
        to.topk_weights.as<float>()[token * to.topk_weights.stride(0) + pick * to.topk_weights.stride(1)] =
            weight_of(scratch, token, pick);
      }
  }

  std::shared_ptr<const Router> router_;
};

Support supports_monolithic(const Problem& problem) {
  return first_refusal(supports_device(problem, DeviceType::cpu), supports_gate(problem, true, true),
                       supports_activation(problem, all_activations()), supports_every_quantisation(problem),
                       supports_compute_dtypes(problem), supports_parallel(problem), supports_inner_routing(problem),
                       supports_logits_dtype(problem), supports_any_shape(problem));
}

}  // namespace
}  // namespace experts::reference

namespace parts {

Entry<Experts> experts_reference_monolithic();
Entry<Experts> experts_reference_monolithic() {
  const std::string name = "experts/reference_monolithic";
  return {.name = name,
          .monolithic = true,
          .supports = experts::reference::supports_monolithic,
          .make = [name](const PartContext& context) -> std::unique_ptr<Experts> {
            return std::make_unique<experts::reference::Monolithic>(name, context);
          }};
}

}  // namespace parts
}  // namespace conclave
