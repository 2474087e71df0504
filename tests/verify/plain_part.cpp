// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The part of plain_part.hpp.
#include "verify/plain_part.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "conclave/error.hpp"

namespace conclave::test {
namespace {

const std::string kName = "experts/plain";

struct PlainWeights final : PackedWeights {
  std::int64_t experts = 0;
  std::vector<float> w13, w2, w13_bias, w2_bias;
  const std::string& layout() const noexcept override { return kName; }
  std::int64_t bytes() const noexcept override { return static_cast<std::int64_t>((w13.size() + w2.size()) * 4); }
  std::int64_t num_local_experts() const noexcept override { return experts; }
};

void expect(bool ok, const char* message) {
  if (!ok) throw Error(ErrorKind::invalid_argument, message);
}

/// Any strides -> dense.
std::vector<float> dense(const ConstTensorView& view) {
  if (view.rank == 1) {
    std::vector<float> row(static_cast<std::size_t>(view.size(0)));
    for (std::int64_t i = 0; i < view.size(0); ++i)
      row[static_cast<std::size_t>(i)] = view.as<float>()[i * view.stride(0)];
    return row;
  }
  std::vector<float> all;
  for (std::int64_t i = 0; i < view.size(0); ++i) {
    const std::vector<float> part = dense(view.at(i));
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

class PlainExperts final : public ModularExperts {
 public:
  PlainExperts(const MoeConfig& moe, Defect defect)
      : moe_(moe), params_(resolve(moe.activation, moe.activation_params)), defect_(defect) {}

  const std::string& name() const noexcept override { return kName; }
  ExpertOutputKind output_kind() const noexcept override { return ExpertOutputKind::reduced; }
  bool supports_expert_map() const noexcept override { return true; }
  WeightAndReduceKind finalize_weight_and_reduce() const noexcept override { return WeightAndReduceKind::no_op; }
  std::string describe(std::int64_t) const override { return "plain loops"; }

  std::unique_ptr<PackedWeights> pack(const ExpertWeights& weights, Stream) const override {
    auto packed = std::make_unique<PlainWeights>();
    fill(*packed, weights);
    return packed;
  }
  void update(PackedWeights& packed, const ExpertWeights& weights, Stream) const override {
    if (defect_ != Defect::ignores_update) fill(static_cast<PlainWeights&>(packed), weights);
  }
  ExpertsBuffers take_buffers(Arena& arena, std::int64_t num_tokens) const override {
    ExpertsBuffers b;
    b.workspace13 = arena.take(DType::f32, {rows()});
    b.workspace2 = arena.take(DType::f32, {moe_.intermediate_size});
    b.output = arena.take(DType::f32, {num_tokens, width()});
    // Taken last, and a multiple of the arena's alignment, so that one byte more is the first that is not ours.
    b.scratch = arena.take(DType::u8, {(4 * width() + 255) / 256 * 256});
    return b;
  }
  void apply(const ExpertsInput& input, const PackedWeights& packed, const ExpertsBuffers& buffers,
             Stream stream) const override {
    if (defect_ != Defect::takes_foreign_weights) expect(packed.layout() == kName, "plain: foreign weights");
    if (packed.layout() != kName) return clear(buffers.output);
    if (defect_ == Defect::throws) throw Error(ErrorKind::invalid_argument, "plain: told to throw");
    if (defect_ == Defect::modifies_input) scale_input(input.hidden_states);
    const auto& weights = static_cast<const PlainWeights&>(packed);
    const std::int64_t num_tokens = input.hidden_states.size(0);
    for (std::int64_t m = 0; m < num_tokens; ++m) {
      if (defect_ == Defect::forgets_last_row && m > 0 && m + 1 == num_tokens) continue;
      one_token(input, weights, buffers, m);
    }
    calls_ += 1;
    float* first = buffers.output.as<float>();
    const bool shift = (defect_ == Defect::differs_each_call && calls_ % 2 == 0) ||
                       (defect_ == Defect::depends_on_threads && stream.executor->num_threads() > 1);
    if (shift) *first = std::nextafter(*first, INFINITY);
    if (defect_ == Defect::writes_past_scratch) buffers.scratch.as<char>()[buffers.scratch.size(0)] = 0;
  }

 private:
  std::int64_t width() const { return moe_.expert_width(); }
  std::int64_t rows() const { return w13_rows(is_gated(moe_.activation), moe_.intermediate_size); }

  void fill(PlainWeights& packed, const ExpertWeights& w) const {
    packed.experts = w.num_local_experts();
    expect(w.w13.dtype == DType::f32 && w.w2.dtype == DType::f32, "plain: weights must be f32");
    expect(w.w13.size(1) == rows() && w.w13.size(2) == width(), "plain: shape of w13");
    expect(w.w2.size(1) == width() && w.w2.size(2) == moe_.intermediate_size, "plain: shape of w2");
    if (defect_ != Defect::ignores_has_bias) {
      expect(w.w13_bias.has_value() == moe_.has_w13_bias, "plain: w13_bias");
      expect(w.w2_bias.has_value() == moe_.has_w2_bias, "plain: w2_bias");
    }
    packed.w13 = dense(w.w13);
    packed.w2 = dense(w.w2);
    if (w.w13_bias) packed.w13_bias = dense(*w.w13_bias);
    if (w.w2_bias && defect_ != Defect::ignores_w2_bias) packed.w2_bias = dense(*w.w2_bias);
  }

  static void clear(const TensorView& output) { std::fill_n(output.as<float>(), output.numel(), 0.0F); }

  static void scale_input(const ConstTensorView& hidden) {
    if (hidden.numel() > 0) *const_cast<float*>(hidden.as<float>()) *= 1.0000002F;
  }

  std::int64_t slot_of(const ExpertsInput& input, std::int64_t m, std::int64_t k, std::int64_t num_local) const {
    const std::int64_t id = input.topk_ids.as<std::int32_t>()[m * input.topk_ids.stride(0) + k];
    if (id < 0 || id >= moe_.num_experts) return -1;
    const std::int64_t slot = input.expert_map ? input.expert_map->as<std::int32_t>()[id] : id;
    if (slot < 0 && defect_ == Defect::ignores_expert_map && num_local > 0) return 0;
    return slot < num_local ? slot : -1;
  }

  void one_token(const ExpertsInput& input, const PlainWeights& weights, const ExpertsBuffers& buffers,
                 std::int64_t m) const {
    float* out = buffers.output.as<float>() + m * buffers.output.stride(0);
    float* sum = buffers.scratch.as<float>();
    if (defect_ != Defect::reads_scratch) std::fill_n(sum, width(), 0.0F);
    bool any = false;
    for (std::int64_t k = 0; k < input.topk_ids.size(1); ++k) {
      const std::int64_t slot = slot_of(input, m, k, weights.experts);
      if (slot < 0) continue;
      any = true;
      float weight = input.topk_weights.as<float>()[m * input.topk_weights.stride(0) + k];
      if (input.router_weight_applied) weight = 1.0F;
      if (weight == 0.0F && defect_ != Defect::multiplies_zero_weight) continue;
      if (defect_ == Defect::weighs_twice && !input.router_weight_applied) weight *= weight;
      add_expert(input, weights, buffers, m, slot, weight, sum);
    }
    if (!any && defect_ == Defect::forgets_empty_rows) return;
    std::copy_n(sum, width(), out);
  }

  void add_expert(const ExpertsInput& input, const PlainWeights& weights, const ExpertsBuffers& buffers, std::int64_t m,
                  std::int64_t slot, float weight, float* sum) const {
    const float* x = input.hidden_states.as<float>() + m * input.hidden_states.stride(0);
    float* products = buffers.workspace13.as<float>();
    float* inner = buffers.workspace2.as<float>();
    for (std::int64_t row = 0; row < rows(); ++row) {
      const float* w = &weights.w13[static_cast<std::size_t>((slot * rows() + row) * width())];
      products[row] = dot(w, x, width(), input.hidden_states.size(0));
      if (!weights.w13_bias.empty()) products[row] += weights.w13_bias[static_cast<std::size_t>(slot * rows() + row)];
      if (defect_ == Defect::mixes_rows && m > 0) products[row] += 0.0F * (x - input.hidden_states.stride(0))[0];
    }
    for (std::int64_t i = 0; i < moe_.intermediate_size; ++i) inner[i] = activate(products, i);
    for (std::int64_t h = 0; h < width(); ++h) {
      const float* w = &weights.w2[static_cast<std::size_t>((slot * width() + h) * moe_.intermediate_size)];
      float y = dot(w, inner, moe_.intermediate_size, input.hidden_states.size(0));
      if (!weights.w2_bias.empty()) y += weights.w2_bias[static_cast<std::size_t>(slot * width() + h)];
      sum[h] += weight * y;
    }
  }

  float dot(const float* a, const float* b, std::int64_t count, std::int64_t num_tokens) const {
    float sum = 0;
    if (defect_ == Defect::depends_on_batch && num_tokens > 1) {
      for (std::int64_t i = count - 1; i >= 0; --i) sum += a[i] * b[i];
    } else {
      for (std::int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
    }
    return sum;
  }

  float activate(const float* products, std::int64_t i) const {
    const std::int64_t size = moe_.intermediate_size;
    if (!is_gated(moe_.activation)) return unary(moe_.activation, products[i]);
    std::int64_t gate = i, up = size + i;
    if (moe_.w13_layout == W13Layout::interleaved) gate = 2 * i, up = 2 * i + 1;
    if (moe_.w13_layout == W13Layout::up_gate) std::swap(gate, up);
    if (defect_ == Defect::swaps_gate_up) std::swap(gate, up);
    return gated(products[gate], products[up]);
  }

  static float logistic(float x) { return 1.0F / (1.0F + std::exp(-x)); }
  static float unary(Activation activation, float x) {
    switch (activation) {
      case Activation::silu_no_mul:
        return x * logistic(x);
      case Activation::gelu_no_mul:
        return 0.5F * x * (1.0F + std::erf(x * 0.70710678F));
      case Activation::gelu_tanh_no_mul:
        return 0.5F * x * (1.0F + std::tanh(0.79788456F * (x + 0.044715F * x * x * x)));
      default:
        return x > 0.0F ? x * x : 0.0F;
    }
  }
  float gated(float g, float u) const {
    const bool has_limit = params_.limit.has_value() && defect_ != Defect::ignores_limit;
    const float limit = has_limit ? static_cast<float>(*params_.limit) : INFINITY;
    const auto alpha = static_cast<float>(params_.alpha.value_or(1)),
               beta = static_cast<float>(params_.beta.value_or(0));
    const float cut_gate = std::min(g, limit), cut_up = std::clamp(u, -limit, limit);
    switch (moe_.activation) {
      case Activation::silu:
        return cut_gate * logistic(cut_gate) * cut_up;
      case Activation::swigluoai:
      case Activation::swigluoai_uninterleave:
        return (cut_up + beta) * cut_gate * logistic(alpha * cut_gate);
      case Activation::swiglustep:
        return std::min(g * logistic(g), limit) * cut_up;
      case Activation::situ: {
        const auto linear = static_cast<float>(params_.linear_beta.value_or(0));
        return beta * std::tanh(g / beta) * logistic(g) * (linear > 0 ? linear * std::tanh(u / linear) : u);
      }
      default:
        return unary(without_mul(moe_.activation), g) * u;
    }
  }

  MoeConfig moe_;
  ActivationParams params_;
  Defect defect_;
  mutable std::atomic<int> calls_{0};
};

Support supports(const Problem& problem) {
  if (problem.device.device.type != DeviceType::cpu) return Support::no("it runs on cpu");
  if (problem.moe.dtype != DType::f32) return Support::no("dtype " + std::string(name_of(problem.moe.dtype)));
  if (problem.moe.weight_dtype != DType::f32)
    return Support::no("weight_dtype " + std::string(name_of(problem.moe.weight_dtype)));
  if (problem.quant != QuantConfig{}) return Support::no("quantisation");
  if (problem.parallel.enable_eplb) return Support::no("enable_eplb");
  return Support::yes();
}

}  // namespace

Entry<Experts> plain_part(Defect defect) {
  Entry<Experts> entry;
  entry.name = kName;
  entry.supports = supports;
  entry.make = [defect](const PartContext& context) {
    return std::make_unique<PlainExperts>(context.problem.moe, defect);
  };
  return entry;
}

Registry registry_with(Defect defect) {
  const Registry builtin = builtin_registry();
  Registry registry;
  registry.routers = builtin.routers;
  registry.prepare_finalizes = builtin.prepare_finalizes;
  registry.experts.add_last(plain_part(defect));
  return registry;
}

}  // namespace conclave::test
