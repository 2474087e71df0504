// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: hidden states [M, H], ids and weights [M, k]. Out: [M, H], weighted and reduced. The rows of one expert are one
// dense product, cut into register tiles; the rows of the second product stay in f32 and are rounded once.
#include "experts/cpu/grouped_experts.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/round_up.hpp"
#include "base/slot_lookup.hpp"
#include "experts/cpu/phases.hpp"
#include "experts/supports.hpp"
#include "experts/weights_check.hpp"
#include "quant/format.hpp"

namespace conclave::experts::grouped {
namespace {

/// Rows of the second product are padded to a whole vector of any instruction set, so that reading them has no tail.
constexpr std::int64_t kRowAlignment = 16;

class GroupedExperts final : public ModularExperts {
 public:
  GroupedExperts(const Engine& engine, const Problem& problem)
      : engine_(engine),
        name_(engine.name),
        problem_(problem),
        activation_(make_activation(problem.moe.activation, problem.moe.activation_params)) {}

  const std::string& name() const noexcept override { return name_; }
  bool supports_expert_map() const noexcept override { return true; }
  bool writes_f32_output() const noexcept override { return true; }
  bool expects_unquantized_inputs() const noexcept override { return engine_.integers != nullptr; }
  ExpertOutputKind output_kind() const noexcept override { return ExpertOutputKind::reduced; }
  WeightAndReduceKind finalize_weight_and_reduce() const noexcept override { return WeightAndReduceKind::no_op; }

  std::unique_ptr<PackedWeights> pack(const ExpertWeights& weights, Stream stream) const override {
    check_weights(problem_, weights);
    auto packed = std::make_unique<GroupedWeights>(engine_, problem_, weights.num_local_experts());
    packed->assign(problem_, weights, *stream.executor);
    return packed;
  }
  void update(PackedWeights& packed, const ExpertWeights& weights, Stream stream) const override {
    packed_as<GroupedWeights>(packed, name_).assign(problem_, weights, *stream.executor);
  }

  ExpertsBuffers take_buffers(Arena& arena, std::int64_t num_tokens) const override;
  void apply(const ExpertsInput& input, const PackedWeights& packed, const ExpertsBuffers& buffers,
             Stream stream) const override;
  std::string describe(std::int64_t num_tokens) const override;

 private:
  const MoeConfig& moe() const noexcept { return problem_.moe; }
  std::int64_t hidden_size() const noexcept { return problem_.moe.expert_width(); }
  void check(const ExpertsInput& input, const ExpertsBuffers& buffers) const;

  /// A workspace: rows as the engine packs them, their scales (integers only), and the floats that they were made from
  /// (whole rows only).
  struct PackedRows {
    std::int64_t scales;       ///< Offset.
    std::int64_t bytes;        ///< Of rows and scales.
    std::int64_t float_bytes;  ///< Of the floats behind them.
  };
  PackedRows packed_rows(std::int64_t num_rows, std::int64_t width) const {
    constexpr std::int64_t kLine = 64;
    const std::int64_t k = round_up(width, engine_.k_step);
    const std::int64_t codes = num_rows * k * engine_.input_bytes;
    if (!engine_.packs_whole_rows) return {codes, codes, 0};
    const std::int64_t scales = round_up(codes, kLine);
    const std::int64_t scale_bytes = engine_.integers == nullptr ? 0 : 4 * num_rows;
    return {scales, round_up(scales + scale_bytes, kLine), 4 * num_rows * k};
  }
  std::int64_t max_rows(std::int64_t num_pairs) const {
    return num_pairs + (engine_.row_quantum - 1) * std::min(num_pairs, moe().num_weight_experts());
  }

  const Engine& engine_;
  std::string name_;
  Problem problem_;
  ActivationFn activation_;
};

ExpertsBuffers GroupedExperts::take_buffers(Arena& arena, std::int64_t num_tokens) const {
  const std::int64_t num_pairs = num_tokens * moe().num_slots();
  require(num_pairs <= INT32_MAX, "{}: {} tokens x {} slots, expected at most {} pairs", name_, num_tokens,
          moe().num_slots(), INT32_MAX);
  const std::int64_t num_experts = moe().num_weight_experts();
  const std::int64_t num_rows = max_rows(num_pairs);
  const std::int64_t row_bytes = num_pairs * round_up(hidden_size(), kRowAlignment) * std::int64_t{sizeof(float)};
  const PackedRows inputs = packed_rows(num_rows, hidden_size());
  const PackedRows activations = packed_rows(num_rows, moe().intermediate_size);

  ExpertsBuffers buffers;
  // Packed inputs die with the first product, before rows of the second exist.
  buffers.workspace13 = arena.take(DType::u8, {std::max(inputs.bytes, row_bytes)});
  buffers.workspace2 = arena.take(DType::u8, {activations.bytes + activations.float_bytes});
  buffers.output = arena.take(moe().dtype, {num_tokens, hidden_size()});
  Arena measure = Arena::measuring();
  Assignment::take(measure, num_pairs, num_experts);
  buffers.scratch = arena.take(DType::u8, {measure.used()});
  return buffers;
}

/// Messages are put together only where something is wrong: this runs on every call and must not allocate.
void GroupedExperts::check(const ExpertsInput& input, const ExpertsBuffers& buffers) const {
  const ConstTensorView& x = input.hidden_states;
  if (x.rank != 2 || x.size(1) != hidden_size() || x.dtype != moe().dtype || (x.size(1) > 1 && x.stride(1) != 1))
    fail(ErrorKind::invalid_argument,
         "{}: hidden_states: given {}, expected {} [num_tokens, {}] with contiguous columns", name_, to_string(x),
         name_of(moe().dtype), hidden_size());
  const auto check_pairs = [&](const char* what, const ConstTensorView& view) {
    if (view.rank != 2 || view.size(0) != x.size(0) || view.size(1) != moe().num_slots())
      fail(ErrorKind::invalid_argument, "{}: {}: given {}, expected [{}, {}]", name_, what, to_string(view), x.size(0),
           moe().num_slots());
  };
  check_pairs("topk_ids", input.topk_ids);
  check_pairs("topk_weights", input.topk_weights);
  if (input.topk_weights.dtype != DType::f32)
    fail(ErrorKind::invalid_argument, "{}: topk_weights: given {}, expected f32", name_, to_string(input.topk_weights));
  const TensorView& out = buffers.output;
  if (out.rank != 2 || out.size(0) != x.size(0) || out.size(1) != hidden_size() ||
      (out.dtype != moe().dtype && out.dtype != DType::f32))
    fail(ErrorKind::invalid_argument, "{}: output: given {}, expected {} [{}, {}]", name_, to_string(out),
         name_of(moe().dtype), x.size(0), hidden_size());
}

void GroupedExperts::apply(const ExpertsInput& input, const PackedWeights& packed, const ExpertsBuffers& buffers,
                           Stream stream) const {
  const auto& weights = packed_as<const GroupedWeights>(packed, name_);
  check(input, buffers);
  const std::int64_t num_tokens = input.hidden_states.size(0);
  if (num_tokens == 0) return;
  const std::int64_t num_local = weights.num_local_experts();
  const SlotLookup slot_of(input.topk_ids, input.expert_map, input.expert_map ? input.expert_map->size(0) : num_local,
                           num_local);
  Arena scratch({buffers.scratch.as<std::byte>(), static_cast<std::size_t>(buffers.scratch.bytes())}, Device{});
  Assignment assignment = Assignment::take(scratch, num_tokens * moe().num_slots(), moe().num_weight_experts());
  assignment.fill(slot_of, input.topk_weights, input.router_weight_applied, num_local, engine_.row_quantum);

  const std::int64_t num_rows = max_rows(num_tokens * moe().num_slots());
  const PackedRows inputs = packed_rows(num_rows, hidden_size());
  const PackedRows activations = packed_rows(num_rows, moe().intermediate_size);
  const auto floats_if = [&](bool used, const TensorView& workspace, std::int64_t offset) {
    return used ? reinterpret_cast<float*>(workspace.as<std::byte>() + offset) : nullptr;
  };
  const bool has_scales = engine_.integers != nullptr;
  const Call call{
      .engine = engine_,
      .moe = problem_.moe,
      .activation = activation_,
      .weights = weights,
      .hidden_states = input.hidden_states,
      .top_k = moe().num_slots(),
      .inputs = buffers.workspace13.data,
      .activations = buffers.workspace2.data,
      .input_scales = floats_if(has_scales, buffers.workspace13, inputs.scales),
      .activation_scales = floats_if(has_scales, buffers.workspace2, activations.scales),
      .activation_rows = floats_if(engine_.packs_whole_rows, buffers.workspace2, activations.bytes),
      .rows = buffers.workspace13.as<float>(),
      .row_stride = round_up(hidden_size(), kRowAlignment),
      .output = buffers.output,
      .executor = *stream.executor,
  };
  pack_rows(call, assignment);
  first_product(call, assignment);
  pack_activations(call, assignment);
  second_product(call, assignment);
  combine(call, assignment);
}

std::string GroupedExperts::describe(std::int64_t num_tokens) const {
  const double pairs = static_cast<double>(num_tokens * moe().num_slots());
  const double rows = pairs / static_cast<double>(std::max<std::int64_t>(1, moe().num_weight_experts()));
  const bool decode = rows <= static_cast<double>(engine_.row_tile);
  return fmt::format("{}: {}x{} tiles, panels of {} columns; {:.3g} rows for each expert: {}", engine_.unit,
                     engine_.row_tile, engine_.panel_columns, engine_.panel_columns, rows,
                     decode ? "decode, weights streamed once, panels shared out in shrinking runs"
                            : fmt::format("prefill, blocks of up to {} rows x 16 panels x {} of k from one counter",
                                          engine_.row_tile * engine_.block_tiles, engine_.k_block));
}

Support supports_cpu(const Engine& engine, const Problem& problem) {
  return problem.device.cpu.*engine.feature ? Support::yes()
                                            : Support::no(fmt::format("the CPU lacks {}", engine.feature_name));
}

Support supports_dtypes(const Engine& engine, const Problem& problem) {
  const MoeConfig& moe = problem.moe;
  if (std::find(engine.dtypes.begin(), engine.dtypes.end(), moe.dtype) == engine.dtypes.end())
    return Support::no(fmt::format("dtype {}, it takes {}", name_of(moe.dtype), name_of(engine.dtypes.front())));
  if (engine.scaled != nullptr || engine.integers != nullptr) return Support::yes();
  if (moe.weight_dtype == engine.weight_dtype) return Support::yes();
  if (engine.widens_weights && is_compute_dtype(moe.weight_dtype)) return Support::yes();
  return Support::no(fmt::format("weight_dtype {}, it takes {}{}", name_of(moe.weight_dtype),
                                 engine.widens_weights ? "f32, bf16 or f16" : name_of(engine.weight_dtype),
                                 engine.widens_weights ? "" : " as dtype"));
}

/// Codes of one of the format's keys beside activations of its key, or unquantised ones; or no codes at all.
Support supports_keys(const Engine& engine, const Problem& problem) {
  if (engine.scaled == nullptr && engine.integers == nullptr) return supports_unquantized(problem);
  const QuantConfig& config = problem.quant;
  const MoeConfig& moe = problem.moe;
  const std::span<const QuantKey> keys = engine.integers != nullptr ? engine.integers->weights : engine.scaled->keys;
  const QuantKey activations = engine.integers != nullptr ? engine.integers->activations : QuantKey::none;
  if (engine.integers != nullptr && std::max(moe.expert_width(), moe.intermediate_size) > engine.integers->max_k)
    return Support::no(fmt::format("hidden_size {}, intermediate_size {}: sums of {} products fit", moe.expert_width(),
                                   moe.intermediate_size, engine.integers->max_k));
  if (config.activations == activations && std::find(keys.begin(), keys.end(), config.weights) != keys.end()) {
    return first_refusal(
        quant::supports_cols(config.weights, QuantRole::weights, "hidden_size", moe.expert_width()),
        quant::supports_cols(config.weights, QuantRole::weights, "intermediate_size", moe.intermediate_size));
  }
  std::string list;
  for (const QuantKey key : keys) list += fmt::format("{}{}", list.empty() ? "" : ", ", name_of(key));
  return Support::no(fmt::format("quantisation weights {} x activations {}, it takes {} x {}", name_of(config.weights),
                                 name_of(config.activations), list, name_of(activations)));
}

Support supports_rate(const Engine& engine, const Problem& problem) {
  if (engine.slow == nullptr || !(problem.device.cpu.*engine.slow)) return Support::yes();
  return Support::slower(
      fmt::format("fits; {} runs at half the rate of f32 products on this CPU", engine.feature_name));
}

Support supports(const Engine& engine, const Problem& problem) {
  return first_refusal(supports_device(problem, DeviceType::cpu), supports_cpu(engine, problem),
                       supports_gate(problem, true, true), supports_activation(problem, all_activations()),
                       supports_keys(engine, problem), supports_dtypes(engine, problem), supports_parallel(problem),
                       supports_any_shape(problem), supports_rate(engine, problem));
}

}  // namespace

Entry<Experts> entry_of(const Engine& engine) {
  return {.name = engine.name,
          .supports = [&engine](const Problem& problem) { return supports(engine, problem); },
          .make = [&engine](const PartContext& context) -> std::unique_ptr<Experts> {
            return std::make_unique<GroupedExperts>(engine, context.problem);
          }};
}

}  // namespace conclave::experts::grouped
