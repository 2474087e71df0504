// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a problem. Out: the first reason why experts cannot run it.
#include "experts/supports.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "conclave/error.hpp"
#include "quant/format.hpp"

namespace conclave::experts {
namespace {

template <class... Args>
Support refuse_unless(bool ok, fmt::format_string<Args...> text, Args&&... args) {
  return ok ? Support::yes() : Support::no(fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace

Support supports_device(const Problem& problem, DeviceType device) {
  return refuse_unless(problem.device.device.type == device, "device {}, it runs on {}",
                       to_string(problem.device.device), device == DeviceType::cpu ? "cpu" : "cuda");
}

Support supports_gate(const Problem& problem, bool gated, bool non_gated) {
  const bool has_gate = is_gated(problem.moe.activation);
  return refuse_unless(has_gate ? gated : non_gated, "activation {} is {}gated", name_of(problem.moe.activation),
                       has_gate ? "" : "not ");
}

Support supports_activation(const Problem& problem, std::span<const Activation> known) {
  const Activation activation = problem.moe.activation;
  if (std::find(known.begin(), known.end(), activation) == known.end())
    return Support::no(fmt::format("activation {}", name_of(activation)));
  try {
    resolve(activation, problem.moe.activation_params);
  } catch (const Error& error) {
    return Support::no(error.what());
  }
  return Support::yes();
}

Support supports_unquantized(const Problem& problem) {
  const QuantConfig& quant = problem.quant;
  return refuse_unless(quant.weights == QuantKey::none && quant.activations == QuantKey::none,
                       "quantisation weights {} x activations {}, it takes none x none", name_of(quant.weights),
                       name_of(quant.activations));
}

Support supports_every_quantisation(const Problem& problem) {
  constexpr auto kWeights = QuantRole::weights;
  constexpr auto kActivations = QuantRole::activations;
  const QuantConfig& q = problem.quant;
  const std::int64_t hidden = problem.moe.expert_width();
  const std::int64_t inner = problem.moe.intermediate_size;
  if (const Support keys =
          first_refusal(quant::supports_key(q.weights, kWeights), quant::supports_key(q.activations, kActivations));
      !keys)
    return keys;
  const ParallelConfig& parallel = problem.parallel;
  return first_refusal(
      quant::supports_cols(q.weights, kWeights, "hidden_size", hidden),
      quant::supports_cols(q.weights, kWeights, "intermediate_size", inner),
      quant::supports_cols(q.activations, kActivations, "hidden_size", hidden),
      quant::supports_cols(q.activations, kActivations, "intermediate_size", inner),
      refuse_unless(
          !quant::spans_the_batch(q.activations) || (parallel.ep_size == 1 && parallel.tp_size == 1),
          "quantisation of activations {}: one scale for the whole batch, of which each of {} ranks sees a part",
          name_of(q.activations), parallel.ep_size * parallel.tp_size));
}

Support supports_compute_dtypes(const Problem& problem) {
  const MoeConfig& moe = problem.moe;
  if (!is_compute_dtype(moe.dtype))
    return Support::no(fmt::format("dtype {}, it takes f32, bf16 or f16", name_of(moe.dtype)));
  return refuse_unless(is_compute_dtype(moe.weight_dtype), "weight_dtype {}, it takes f32, bf16 or f16",
                       name_of(moe.weight_dtype));
}

Support supports_parallel(const Problem& problem) {
  return refuse_unless(!problem.parallel.enable_eplb, "enable_eplb {}: parts see slots, the layer maps experts to them",
                       problem.parallel.enable_eplb);
}

Support supports_inner_routing(const Problem& problem) {
  return refuse_unless(problem.moe.zero_experts == 0,
                       "zero_experts {}: their identity term needs the routing outside of the experts",
                       problem.moe.zero_experts);
}

Support supports_logits_dtype(const Problem& problem) {
  return refuse_unless(is_compute_dtype(problem.moe.router_logits_dtype),
                       "router_logits_dtype {}, it takes f32, bf16 or f16", name_of(problem.moe.router_logits_dtype));
}

Support supports_any_shape(const Problem& problem) {
  const MoeConfig& moe = problem.moe;
  if (moe.expert_width() <= 0) return Support::no(fmt::format("hidden_size {}", moe.expert_width()));
  if (moe.intermediate_size <= 0) return Support::no(fmt::format("intermediate_size {}", moe.intermediate_size));
  if (moe.num_slots() <= 0) return Support::no(fmt::format("top_k {}", moe.top_k));
  if (moe.num_weight_experts() <= 0) return Support::no(fmt::format("num_experts {}", moe.num_experts));
  return refuse_unless(!moe.apply_router_weight_on_input || moe.num_slots() == 1,
                       "apply_router_weight_on_input with {} slots for each token, it is defined for 1",
                       moe.num_slots());
}

Support supports_all_on_cpu(const Problem& problem) {
  return first_refusal(supports_device(problem, DeviceType::cpu), supports_gate(problem, true, true),
                       supports_activation(problem, all_activations()), supports_every_quantisation(problem),
                       supports_compute_dtypes(problem), supports_parallel(problem), supports_any_shape(problem));
}

Support supports_all_unquantized_on_cpu(const Problem& problem) {
  return first_refusal(supports_device(problem, DeviceType::cpu), supports_gate(problem, true, true),
                       supports_activation(problem, all_activations()), supports_unquantized(problem),
                       supports_compute_dtypes(problem), supports_parallel(problem), supports_any_shape(problem));
}

}  // namespace conclave::experts
