// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// grouped_experts.hpp: two launches of the grouped product, after one that pads rows where they need it.
#include "experts/cuda/grouped_experts.hpp"

#include <fmt/format.h>

#include "base/round_up.hpp"
#include "experts/cuda/pad_rows.hpp"
#include "experts/cuda/supports.hpp"
#include "experts/weights_check.hpp"

namespace conclave::experts::cuda {
namespace {

/// Rows of 16-bit elements begin at multiples of 16 bytes.
constexpr std::int64_t kAlignment = 8;
constexpr std::int64_t kMaxExperts = 1024;

bool is_common(const ActivationFn& fn) {
  return fn.kind == Activation::silu || fn.kind == Activation::swigluoai ||
         fn.kind == Activation::swigluoai_uninterleave;
}

Epilogue epilogue_of(const ActivationFn& fn) {
  if (is_common(fn)) return Epilogue::swiglu;
  return fn.gated ? Epilogue::gated : Epilogue::plain;
}

}  // namespace

GroupedExperts::GroupedExperts(std::string name, const Problem& problem, const GroupedEngine& engine)
    : name_(std::move(name)),
      problem_(problem),
      engine_(engine),
      activation_(make_activation(problem.moe.activation, problem.moe.activation_params)),
      hidden_(round_up(problem.moe.expert_width(), kAlignment)),
      inner_(round_up(problem.moe.intermediate_size, kAlignment)) {}

std::unique_ptr<PackedWeights> GroupedExperts::pack(const ExpertWeights& weights, Stream stream) const {
  return std::make_unique<DeviceWeights>(name_, DeviceLayout{moe().dtype, kAlignment, true}, problem_, weights, stream);
}

void GroupedExperts::update(PackedWeights& packed, const ExpertWeights& weights, Stream stream) const {
  packed_as<DeviceWeights>(packed, name_).assign(problem_, weights, stream);
}

GemmProblem GroupedExperts::sizes() const {
  return {.num_experts = moe().num_experts,
          .top_k = moe().num_slots(),
          .hidden_size = hidden_,
          .intermediate_size = inner_,
          .gated = activation_.gated,
          .num_multiprocessors = problem_.device.num_threads,
          .common_activation = is_common(activation_)};
}

GemmChoice GroupedExperts::choice_for(std::int64_t num_tokens) const {
  return engine_.choose(sizes(), num_tokens);
}

double GroupedExperts::predicted_seconds(std::int64_t num_tokens) const {
  if (engine_.predict == nullptr) return 0;
  const DeviceFacts& device = problem_.device;
  return engine_.predict(sizes(),
                         {device.bytes_per_second, moe().dtype == DType::bf16 ? device.bf16_flops : device.f16_flops},
                         num_tokens);
}

GroupedExperts::Tokens GroupedExperts::aligned(const void* rows, std::int64_t stride, std::int64_t count, void* padded,
                                               Stream stream) const {
  const bool fits =
      moe().expert_width() == hidden_ && stride % kAlignment == 0 && reinterpret_cast<std::uintptr_t>(rows) % 16 == 0;
  if (fits) return {rows, stride};
  pad_rows({rows, stride, padded, count, moe().expert_width(), hidden_}, static_cast<cudaStream_t>(stream.native));
  return {padded, hidden_};
}

void GroupedExperts::products(const Products& p, const DeviceWeights& weights, const GemmChoice& choice,
                              Stream stream) const {
  GroupedProduct product;
  product.num_experts = weights.num_local_experts();
  product.num_rows = p.rows;
  product.dtype = moe().dtype;
  product.num_multiprocessors = problem_.device.num_threads;
  product.stream = static_cast<cudaStream_t>(stream.native);
  GroupedGemm& work = product.work;
  work.tiles = p.map.tiles;
  work.num_tiles = p.map.num_tiles;

  product.weights = weights.w13();
  product.epilogue = epilogue_of(activation_);
  work.weight_rows = static_cast<std::int32_t>(weights.w13_rows());
  work.depth = static_cast<std::int32_t>(hidden_);
  work.tokens = p.sorted == nullptr ? p.tokens.rows : p.sorted;
  work.token_stride = p.sorted == nullptr ? p.tokens.stride : hidden_;
  work.row_tokens = p.sorted == nullptr ? p.map.row_tokens : nullptr;
  work.out = p.inner;
  work.out_stride = inner_;
  work.bias = weights.w13_bias();
  work.activation = activation_;
  engine_.multiply(product, choice.tile);

  product.weights = weights.w2();
  product.epilogue = Epilogue::linear;
  work.weight_rows = static_cast<std::int32_t>(hidden_);
  work.depth = static_cast<std::int32_t>(inner_);
  work.tokens = p.inner;
  work.token_stride = inner_;
  work.row_tokens = nullptr;
  work.out = p.out;
  work.out_stride = hidden_;
  work.bias = weights.w2_bias();
  engine_.multiply(product, choice.second);
}

Support supports_grouped(const Problem& problem, const GroupedEngine& engine) {
  const MoeConfig& c = problem.moe;
  if (const Support base = supports_unquantized_on_cuda(problem); !base) return base;
  if (const Support gpu = engine.supports(problem); !gpu) return gpu;
  if (c.dtype != DType::bf16 && c.dtype != DType::f16)
    return Support::no(fmt::format("dtype {}, it takes bf16 or f16", name_of(c.dtype)));
  if (c.weight_dtype != c.dtype)
    return Support::no(fmt::format("weight_dtype {}, it takes that of the activations, {}", name_of(c.weight_dtype),
                                   name_of(c.dtype)));
  if (c.num_weight_experts() > kMaxExperts)
    return Support::no(fmt::format("num_experts {}, it takes at most {}", c.num_weight_experts(), kMaxExperts));
  return Support::yes();
}

}  // namespace conclave::experts::cuda
