// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: hidden states [M, H] f32, ids and weights [M, k], experts w13 [E, 2I, H] and w2 [E, H, I] f32.
// Out: [M, H], weighted and summed over the picks in the order of k.
#include "example_experts.hpp"

#include <algorithm>
#include <cmath>
#include <string>

using namespace conclave;

namespace {

const std::string kName = "experts/example_f32";

// Gate and up rows of one inner unit lie side by side, whatever order they came in: [E, I, 2, H]. One pass over memory
// then yields both.
struct ExampleWeights final : PackedWeights {
  Tensor w13, w2;
  const std::string& layout() const noexcept override { return kName; }
  std::int64_t bytes() const noexcept override { return w13.view().bytes() + w2.view().bytes(); }
  std::int64_t num_local_experts() const noexcept override { return w2.view().size(0); }
};

// Sixteen independent sums let the compiler use vectors without being allowed to reorder one long sum. Always the same
// order for the same n, so a row's result does not depend on its neighbours.
float dot(const float* a, const float* b, std::int64_t n) {
  constexpr int lanes = 16;
  float sums[lanes] = {};
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int lane = 0; lane < lanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  for (int lane = 0; i < n; ++i, ++lane) sums[lane] += a[i] * b[i];
  for (int half = lanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  return sums[0];
}

float silu(float x) {
  return x / (1.0F + std::exp(-x));
}

class ExampleExperts final : public ModularExperts {
 public:
  explicit ExampleExperts(const MoeConfig& config)
      : hidden_size_(config.hidden_size), intermediate_size_(config.intermediate_size), layout_(config.w13_layout) {}

  const std::string& name() const noexcept override { return kName; }
  ExpertOutputKind output_kind() const noexcept override { return ExpertOutputKind::reduced; }
  bool supports_expert_map() const noexcept override { return true; }
  WeightAndReduceKind finalize_weight_and_reduce() const noexcept override { return WeightAndReduceKind::no_op; }
  std::string describe(std::int64_t) const override { return "one token at a time, 16 lanes"; }

  std::unique_ptr<PackedWeights> pack(const ExpertWeights& weights, Stream stream) const override {
    const std::int64_t num_local = weights.num_local_experts();
    auto packed = std::make_unique<ExampleWeights>();
    packed->w13 = Tensor(DType::f32, {num_local, intermediate_size_, 2, hidden_size_});
    packed->w2 = Tensor(DType::f32, {num_local, hidden_size_, intermediate_size_});
    update(*packed, weights, stream);
    return packed;
  }

  void update(PackedWeights& packed, const ExpertWeights& weights, Stream) const override {
    auto& mine = unpack(packed);
    require_shape("w13", weights.w13, mine.num_local_experts(), 2 * intermediate_size_, hidden_size_);
    require_shape("w2", weights.w2, mine.num_local_experts(), hidden_size_, intermediate_size_);
    for (std::int64_t e = 0; e < mine.num_local_experts(); ++e) {
      copy_w13(weights.w13.at(e), mine.w13.view().at(e));
      for (std::int64_t h = 0; h < hidden_size_; ++h)
        std::copy_n(weights.w2.at(e).at(h).as<float>(), intermediate_size_, mine.w2.view().at(e).at(h).as<float>());
      give_up(weights, weights.w13.at(e));
      give_up(weights, weights.w2.at(e));
    }
  }

  // Called once to measure and on every run to take: the same code, so the two cannot disagree.
  ExpertsBuffers take_buffers(Arena& arena, std::int64_t num_tokens) const override {
    ExpertsBuffers buffers;
    buffers.workspace2 = arena.take(DType::f32, {num_tokens, intermediate_size_});
    buffers.output = arena.take(DType::f32, {num_tokens, hidden_size_});
    return buffers;
  }

  void apply(const ExpertsInput& input, const PackedWeights& packed, const ExpertsBuffers& buffers,
             Stream stream) const override {
    const auto& weights = unpack(packed);
    const int num_threads = stream.executor->num_threads();
    auto rows_of_thread = [&](int thread) {
      for (std::int64_t m = thread; m < input.hidden_states.size(0); m += num_threads)
        apply_token(m, input, weights, buffers);
    };
    stream.executor->parallel(rows_of_thread);
  }

 private:
  static ExampleWeights& unpack(PackedWeights& packed) {
    return const_cast<ExampleWeights&>(unpack(static_cast<const PackedWeights&>(packed)));
  }
  static const ExampleWeights& unpack(const PackedWeights& packed) {
    if (packed.layout() != kName)
      throw Error(ErrorKind::invalid_argument,
                  kName + ": packed weights: given the layout of " + packed.layout() + ", expected its own");
    return static_cast<const ExampleWeights&>(packed);
  }

  static void require_shape(const char* what, const ConstTensorView& given, std::int64_t a, std::int64_t b,
                            std::int64_t c) {
    const ConstTensorView expected(nullptr, DType::f32, {a, b, c});
    if (given.dtype == DType::f32 && given.rank == 3 && given.shape == expected.shape) return;
    throw Error(ErrorKind::invalid_argument,
                kName + ": " + what + ": given " + to_string(given) + ", expected " + to_string(expected));
  }

  static void give_up(const ExpertWeights& weights, const ConstTensorView& expert) {
    if (weights.give_up && expert.is_contiguous()) weights.give_up(expert.data, expert.bytes());
  }

  std::int64_t gate_row(std::int64_t i) const {
    if (layout_ == W13Layout::interleaved) return 2 * i;
    return layout_ == W13Layout::gate_up ? i : intermediate_size_ + i;
  }
  std::int64_t up_row(std::int64_t i) const {
    if (layout_ == W13Layout::interleaved) return 2 * i + 1;
    return layout_ == W13Layout::gate_up ? intermediate_size_ + i : i;
  }
  void copy_w13(const ConstTensorView& from, const TensorView& to) const {
    for (std::int64_t i = 0; i < intermediate_size_; ++i) {
      std::copy_n(from.at(gate_row(i)).as<float>(), hidden_size_, to.at(i).at(0).as<float>());
      std::copy_n(from.at(up_row(i)).as<float>(), hidden_size_, to.at(i).at(1).as<float>());
    }
  }

  // The local slot of a global id, or -1: an empty slot, an id out of range, or an expert of another rank.
  static std::int64_t local_slot(std::int32_t id, const ExpertsInput& input, std::int64_t num_local) {
    if (id < 0 || id >= (input.expert_map ? input.expert_map->size(0) : num_local)) return -1;
    return input.expert_map ? input.expert_map->as<std::int32_t>()[id] : id;
  }

  void apply_token(std::int64_t m, const ExpertsInput& input, const ExampleWeights& weights,
                   const ExpertsBuffers& buffers) const {
    const float* x = input.hidden_states.at(m).as<float>();
    float* inner = buffers.workspace2.at(m).as<float>();
    float* output = buffers.output.at(m).as<float>();
    std::fill_n(output, hidden_size_, 0.0F);
    for (std::int64_t k = 0; k < input.topk_ids.size(1); ++k) {
      const float given = input.topk_weights.at(m).as<float>()[k];
      const float weight = input.router_weight_applied ? 1.0F : given;
      const std::int32_t id = input.topk_ids.at(m).as<std::int32_t>()[k];
      const std::int64_t slot = local_slot(id, input, weights.num_local_experts());
      if (slot < 0 || weight == 0.0F) continue;
      const float* w13 = weights.w13.view().at(slot).as<float>();
      const float* w2 = weights.w2.view().at(slot).as<float>();
      for (std::int64_t i = 0; i < intermediate_size_; ++i, w13 += 2 * hidden_size_)
        inner[i] = silu(dot(w13, x, hidden_size_)) * dot(w13 + hidden_size_, x, hidden_size_);
      for (std::int64_t h = 0; h < hidden_size_; ++h, w2 += intermediate_size_)
        output[h] += weight * dot(w2, inner, intermediate_size_);
    }
  }

  std::int64_t hidden_size_, intermediate_size_;
  W13Layout layout_;
};

Support refuse_unless(bool ok, const std::string& reason) {
  return ok ? Support::yes() : Support::no(reason);
}

// Every field of the problem is honoured or refused here; what is not named (routing, shapes, parallel sizes) is
// honoured because the kernel's arithmetic does not depend on it.
Support supports(const Problem& problem) {
  const MoeConfig& moe = problem.moe;
  const bool unquantised = problem.quant == QuantConfig{};
  return first_refusal(
      refuse_unless(problem.device.device.type == DeviceType::cpu, "device " + to_string(problem.device.device)),
      refuse_unless(moe.dtype == DType::f32, "dtype " + std::string(name_of(moe.dtype))),
      refuse_unless(moe.weight_dtype == DType::f32, "weight_dtype " + std::string(name_of(moe.weight_dtype))),
      refuse_unless(unquantised, "quantisation weights " + std::string(name_of(problem.quant.weights)) +
                                     " x activations " + std::string(name_of(problem.quant.activations))),
      refuse_unless(moe.activation == Activation::silu, "activation " + std::string(name_of(moe.activation))),
      refuse_unless(moe.activation_params == ActivationParams{}, "activation constants"),
      refuse_unless(!moe.has_w13_bias && !moe.has_w2_bias, "biases"),
      refuse_unless(!problem.parallel.enable_eplb, "enable_eplb true"));
}

}  // namespace

Entry<Experts> example_f32() {
  Entry<Experts> entry;
  entry.name = kName;
  entry.supports = supports;
  entry.make = [](const PartContext& context) { return std::make_unique<ExampleExperts>(context.problem.moe); };
  return entry;
}
