// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Allocation and fill of random weights.
#include "bench_weights.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "bench_codes.hpp"
#include "error.hpp"
#include "memory.hpp"

namespace conclave::cli {
namespace {

/// Sign and mantissa bits that are random, and the exponent field, of the elements in one 64-bit word.
struct WordPattern {
  std::uint64_t random = 0, fixed = 0;
};

WordPattern pattern_of(DType dtype, double scale) {
  const int exponent = std::ilogb(scale);
  const auto repeat = [](std::uint64_t element) { return element * 0x0001000100010001U; };
  switch (dtype) {
    case DType::bf16:
      return {repeat(0x807f), repeat(static_cast<std::uint64_t>(exponent + 127) << 7)};
    case DType::f16:  // 1: the smallest exponent of a normal number
      return {repeat(0x83ff), repeat(static_cast<std::uint64_t>(std::max(exponent + 15, 1)) << 10)};
    case DType::f32:
      return {0x807fffff807fffffU, (static_cast<std::uint64_t>(exponent + 127) << 23) * 0x100000001U};
    case DType::fp8_e4m3:  // Below 2: the upper codes hold NaN.
      return {0xbfbfbfbfbfbfbfbfU, 0};
    case DType::i8:
    case DType::u8:
      return {~std::uint64_t{0}, 0};
    default:
      bad_input("random weights: given {}, expected f32, bf16, f16, fp8_e4m3, i8 or u8", name_of(dtype));
  }
}

std::uint64_t mixed(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

void fill_block(std::byte* at, std::int64_t bytes, const WordPattern& pattern, std::uint64_t seed) {
  std::uint64_t state = mixed(seed) | 1U;
  for (std::int64_t i = 0; i < bytes; i += 8) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    const std::uint64_t word = (state & pattern.random) | pattern.fixed;
    std::memcpy(at + i, &word, static_cast<std::size_t>(std::min<std::int64_t>(8, bytes - i)));
  }
}

std::int64_t gate_rows(const MoeConfig& c, std::int64_t inner) {
  return w13_rows(is_gated(c.activation), inner);
}

std::int64_t expert_bytes(const Problem& p) {
  const MoeConfig& c = p.moe;
  const std::int64_t rows13 = gate_rows(c, c.intermediate_size);
  std::int64_t bytes = weight_bytes(p.quant.weights, c.weight_dtype, rows13, c.expert_width()) +
                       weight_bytes(p.quant.weights, c.weight_dtype, c.expert_width(), c.intermediate_size);
  if (c.has_w13_bias) bytes += bytes_of(DType::f32, rows13);
  if (c.has_w2_bias) bytes += bytes_of(DType::f32, c.expert_width());
  return bytes;
}

/// Makes and remembers tensors: the weights' views live as long as keep_alive.
class Maker {
 public:
  explicit Maker(Executor& executor) : executor_(executor) {}
  ConstTensorView operator()(DType dtype, std::initializer_list<std::int64_t> shape, std::int64_t fan_in) {
    owned_->emplace_back(dtype, shape);
    fill_random(owned_->back(), 1.0 / std::sqrt(static_cast<double>(fan_in)), owned_->size(), executor_);
    return owned_->back();
  }
  /// w13 and w2 first, as without codes: they are what is given up.
  void codes(QuantKey key, ExpertWeights& w, std::int64_t rows13, std::int64_t width, std::int64_t inner,
             std::int64_t experts) {
    RandomCodes w13 = random_codes(key, experts, rows13, width, 1, executor_);
    RandomCodes w2 = random_codes(key, experts, width, inner, 2, executor_);
    w.w13 = keep(w13.elements);
    w.w2 = keep(w2.elements);
    w.w13_scale = keep(w13.scale);
    w.w2_scale = keep(w2.scale);
    if (w13.global_scale) w.w13_global_scale = keep(*w13.global_scale);
    if (w2.global_scale) w.w2_global_scale = keep(*w2.global_scale);
    if (w13.zero_point) w.w13_zero_point = keep(*w13.zero_point);
    if (w2.zero_point) w.w2_zero_point = keep(*w2.zero_point);
  }
  const std::shared_ptr<std::vector<Tensor>>& owned() const { return owned_; }

 private:
  ConstTensorView keep(const Tensor& tensor) {
    owned_->push_back(tensor);
    return tensor;
  }
  Executor& executor_;
  std::shared_ptr<std::vector<Tensor>> owned_ = std::make_shared<std::vector<Tensor>>();
};

}  // namespace

void fill_random(const TensorView& tensor, double scale, std::uint64_t seed, Executor& executor) {
  constexpr std::int64_t kBlock = 1 << 20;  // bytes; one stream of random numbers for each, whoever fills it
  const WordPattern pattern = pattern_of(tensor.dtype, scale);
  const std::int64_t bytes = tensor.bytes(), blocks = (bytes + kBlock - 1) / kBlock;
  auto* data = static_cast<std::byte*>(tensor.data);
  const int threads = executor.num_threads();
  executor.parallel([&](int thread) {
    for (std::int64_t block = thread; block < blocks; block += threads)
      fill_block(data + block * kBlock, std::min(kBlock, bytes - block * kBlock), pattern,
                 seed * 0x10001U + static_cast<std::uint64_t>(block) * 0x9e3779b9U);
  });
}

std::int64_t random_weights_bytes(const Problem& p) {
  const MoeConfig& c = p.moe;
  const std::int64_t inner = c.shared.intermediate_size;
  return c.num_weight_experts() * expert_bytes(p) +
         bytes_of(c.weight_dtype, (gate_rows(c, inner) + inner) * c.hidden_size + 2 * c.latent_size * c.hidden_size);
}

void require_memory(const Problem& p) {
  const std::int64_t left = available_memory();
  if (left == 0) return;
  // Packing may pad, and holds one expert twice for a moment; inputs and workspace are small beside it.
  constexpr double kOverhead = 1.15;
  const double needed = static_cast<double>(random_weights_bytes(p)) * kOverhead;
  if (needed <= static_cast<double>(left)) return;
  const double fixed = needed - static_cast<double>(p.moe.num_weight_experts() * expert_bytes(p)) * kOverhead;
  const auto fitting = static_cast<std::int64_t>((static_cast<double>(left) - fixed) /
                                                 (static_cast<double>(expert_bytes(p)) * kOverhead)) +
                       p.moe.zero_experts;
  const std::string advice = fitting > std::max(p.moe.top_k, p.moe.zero_experts)
                                 ? fmt::format("--num-experts {} would fit", fitting)
                                 : std::string("not even top_k experts would fit");
  bad_input("the weights of {} experts take {:.1f} GB, but {:.1f} GB of memory are left; {}", p.moe.num_experts,
            needed * 1e-9, static_cast<double>(left) * 1e-9, advice);
}

LayerWeights random_weights(const Problem& p, bool give_up, Executor& executor) {
  const MoeConfig& c = p.moe;
  Maker make(executor);
  const std::int64_t experts = c.num_weight_experts(), width = c.expert_width(), inner = c.intermediate_size;
  const std::int64_t rows13 = gate_rows(c, inner), shared = c.shared.intermediate_size;
  LayerWeights w;
  if (p.quant.weights != QuantKey::none) {
    make.codes(p.quant.weights, w.experts, rows13, width, inner, experts);
  } else {
    w.experts.w13 = make(c.weight_dtype, {experts, rows13, width}, width);
    w.experts.w2 = make(c.weight_dtype, {experts, width, inner}, inner);
  }
  if (give_up)
    w.experts.give_up = [w13 = make.owned()->at(0).storage(), w2 = make.owned()->at(1).storage()](const void* begin,
                                                                                                  std::int64_t bytes) {
      w13->discard(begin, bytes);
      w2->discard(begin, bytes);
    };
  if (c.has_w13_bias) w.experts.w13_bias = make(DType::f32, {experts, rows13}, width);
  if (c.has_w2_bias) w.experts.w2_bias = make(DType::f32, {experts, width}, inner);
  if (c.routing.has_bias) {
    // Zero: the draws alone decide who is busy.
    make.owned()->emplace_back(DType::f32, std::initializer_list<std::int64_t>{c.num_experts});
    w.e_score_correction_bias = make.owned()->back();
  }
  if (shared > 0) {
    w.shared_w13 = make(c.weight_dtype, {gate_rows(c, shared), c.hidden_size}, c.hidden_size);
    w.shared_w2 = make(c.weight_dtype, {c.hidden_size, shared}, shared);
  }
  if (c.shared.sigmoid_gate) w.shared_gate = make(c.weight_dtype, {c.hidden_size}, c.hidden_size);
  if (c.latent_size > 0) {
    w.latent_in = make(c.weight_dtype, {c.latent_size, c.hidden_size}, c.hidden_size);
    w.latent_out = make(c.weight_dtype, {c.hidden_size, c.latent_size}, c.latent_size);
  }
  w.keep_alive = make.owned();
  return w;
}

LayerWeights repeated_weights(const Problem& p, Executor& executor) {
  Problem one = p;
  one.moe.num_experts = 1;
  one.moe.zero_experts = 0;
  one.moe.routing.num_fused_shared_experts = 0;
  one.moe.routing.has_bias = false;
  LayerWeights w = random_weights(one, false, executor);
  const auto repeat = [&](ConstTensorView& view) {
    view.shape[0] = p.moe.num_weight_experts();
    view.strides[0] = 0;
  };
  repeat(w.experts.w13);
  repeat(w.experts.w2);
  if (w.experts.w13_bias) repeat(*w.experts.w13_bias);
  if (w.experts.w2_bias) repeat(*w.experts.w2_bias);
  if (p.moe.routing.has_bias) {
    auto owned = std::make_shared<std::pair<std::shared_ptr<const void>, Tensor>>(
        w.keep_alive, Tensor(DType::f32, {p.moe.num_experts}));
    w.e_score_correction_bias = owned->second;
    w.keep_alive = owned;
  }
  return w;
}

}  // namespace conclave::cli
