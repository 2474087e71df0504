// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: hidden states [E_local, T, H] with counts. Out: f32 rows of the same shape, unweighted; zeros behind the valid
// ones. The obvious host loop: for each expert two dense products. Simple and quick enough to check batched transports.
#include <algorithm>

#include "conclave/registry.hpp"
#include "cpu/dense.hpp"
#include "cpu/float_convert.hpp"
#include "cpu/parallel_for.hpp"
#include "experts/batched_input.hpp"
#include "experts/plain_experts.hpp"
#include "experts/supports.hpp"

namespace conclave {
namespace experts::naive {
namespace {

class Batched final : public PlainExperts<ModularExperts> {
 public:
  using PlainExperts::PlainExperts;

  ActivationFormat activation_format() const noexcept override { return ActivationFormat::batched_experts; }
  ExpertOutputKind output_kind() const noexcept override { return ExpertOutputKind::unreduced_batched; }
  WeightAndReduceKind finalize_weight_and_reduce() const noexcept override {
    return WeightAndReduceKind::naive_batched;
  }

  /// The products of one expert at a time.
  ExpertsBuffers take_buffers(Arena& arena, std::int64_t num_tokens) const override {
    ExpertsBuffers buffers;
    buffers.workspace13 = arena.take(DType::f32, {num_tokens, w13_rows()});
    buffers.workspace2 = arena.take(DType::f32, {num_tokens, moe().intermediate_size});
    // Quantised activations are f32 that went through their codes.
    const std::int64_t inputs = problem().quant.activations == QuantKey::none ? 0 : num_tokens * hidden_size();
    buffers.scratch = arena.take(DType::u8, {bytes_of(DType::f32, inputs)});
    buffers.output = arena.take(DType::f32, {num_local_experts(problem()), num_tokens, hidden_size()});
    return buffers;
  }

  void apply(const ExpertsInput& input, const PackedWeights& packed, const ExpertsBuffers& buffers,
             Stream stream) const override {
    const PlainWeights& weights = plain(packed);
    const bool coded = check_codes(input.hidden_states, input.scales, 3);
    if (!coded) check_hidden_states(input.hidden_states, 3);
    const std::span<const std::int32_t> counts = batched_counts(input, weights, buffers.output);
    const std::int64_t max_rows = buffers.output.size(1);
    for (std::int64_t e = 0; e < buffers.output.size(0); ++e) {
      const std::int64_t rows = valid_rows(counts, weights, e, max_rows);
      const TensorView output = buffers.output.at(e);
      if (rows > 0) {
        const ConstTensorView scales = coded ? input.scales->at(e).narrow(0, 0, rows) : ConstTensorView{};
        run_expert(weights, e, input.hidden_states.at(e).narrow(0, 0, rows), scales, buffers, output.narrow(0, 0, rows),
                   *stream.executor);
      }
      std::fill_n(output.as<float>() + rows * hidden_size(), (max_rows - rows) * hidden_size(), 0.0f);
    }
  }

  std::string describe(std::int64_t /*num_tokens*/) const override {
    return "expert after expert, two dense products each";
  }

 private:
  void run_expert(const PlainWeights& weights, std::int64_t e, const ConstTensorView& x, const ConstTensorView& scales,
                  const ExpertsBuffers& buffers, const TensorView& output, Executor& executor) const {
    const std::int64_t rows = x.size(0);
    const quant::ActivationQuantiser& quantiser = weights.activations();
    const TensorView product = buffers.workspace13.narrow(0, 0, rows);
    const TensorView inner = buffers.workspace2.narrow(0, 0, rows);
    cpu::dense(quantiser ? quantised(weights, e, x, scales, buffers) : x, weights.w13().at(e),
               bias_of(weights.w13_bias(), e), product, executor);
    cpu::parallel_for(executor, rows, kRowsWorthThreads, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        auto* y = inner.at(row).as<float>();
        activate_row(activation(), moe().w13_layout, product.at(row).as<float>(), y, moe().intermediate_size);
        quantiser.round_trip(y, moe().intermediate_size, weights.a2_scale(e));
      }
    });
    cpu::dense(inner, weights.w2().at(e), bias_of(weights.w2_bias(), e), output, executor);
  }

  /// The rows of one expert as they come out of their codes.
  ConstTensorView quantised(const PlainWeights& weights, std::int64_t e, const ConstTensorView& x,
                            const ConstTensorView& scales, const ExpertsBuffers& buffers) const {
    const TensorView out(buffers.scratch.data, DType::f32, {x.size(0), hidden_size()});
    for (std::int64_t row = 0; row < x.size(0); ++row) {
      auto* y = out.at(row).as<float>();
      if (scales.rank > 0) {  // Codes that came as codes.
        weights.activations().decode(x.at(row).as<std::uint8_t>(), scales.at(row).data, scales.stride(1), hidden_size(),
                                     y);
        continue;
      }
      cpu::load_row_f32(x.at(row), y);
      weights.activations().round_trip(y, hidden_size(), weights.a1_scale(e));
    }
    return out;
  }

  static std::optional<ConstTensorView> bias_of(const Tensor& bias, std::int64_t e) {
    if (!bias) return std::nullopt;
    return bias.view().at(e);
  }

  /// An activation row takes microseconds at common widths, about as long as starting a parallel region.
  static constexpr std::int64_t kRowsWorthThreads = 4;
};

/// It never sees more than one expert's rows, so a scale over all of them is out of its reach.
Support supports_naive(const Problem& problem) {
  if (quant::spans_the_batch(problem.quant.activations))
    return Support::no(
        fmt::format("quantisation of activations {}: one scale for the whole batch, it goes expert by "
                    "expert",
                    name_of(problem.quant.activations)));
  return supports_all_on_cpu(problem);
}

}  // namespace
}  // namespace experts::naive

namespace parts {

Entry<Experts> experts_naive_batched();
Entry<Experts> experts_naive_batched() {
  const std::string name = "experts/naive_batched";
  return {.name = name,
          .format = ActivationFormat::batched_experts,
          .supports = experts::naive::supports_naive,
          .make = [name](const PartContext& context) -> std::unique_ptr<Experts> {
            return std::make_unique<experts::naive::Batched>(name, context.problem);
          }};
}

}  // namespace parts
}  // namespace conclave
