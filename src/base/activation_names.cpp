// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Names of activations and w13 layouts, which of them are gated, and the defaults of their constants.
#include "base/names.hpp"
#include "conclave/activation.hpp"

namespace conclave {
namespace {

constexpr NameTable<Activation, 12> kActivations{{
    {Activation::silu, "silu"},
    {Activation::gelu, "gelu"},
    {Activation::gelu_tanh, "gelu_tanh"},
    {Activation::relu2, "relu2"},
    {Activation::swigluoai, "swigluoai"},
    {Activation::swigluoai_uninterleave, "swigluoai_uninterleave"},
    {Activation::swiglustep, "swiglustep"},
    {Activation::situ, "situ"},
    {Activation::silu_no_mul, "silu_no_mul"},
    {Activation::gelu_no_mul, "gelu_no_mul"},
    {Activation::gelu_tanh_no_mul, "gelu_tanh_no_mul"},
    {Activation::relu2_no_mul, "relu2_no_mul"},
}};
constexpr auto kActivationValues = values_of(kActivations);

constexpr NameTable<W13Layout, 3> kLayouts{{
    {W13Layout::gate_up, "gate_up"},
    {W13Layout::up_gate, "up_gate"},
    {W13Layout::interleaved, "interleaved"},
}};

/// Which constants a formula has, their defaults, and whether one must be given.
struct Constants {
  std::optional<double> alpha, beta, limit, linear_beta;
  bool has_limit = false, limit_required = false, beta_required = false, has_linear_beta = false;
};

Constants constants_of(Activation activation) {
  Constants c;
  switch (activation) {
    case Activation::silu:  // An optional clamp (DeepSeek-V4, MiniMax).
      c.has_limit = true;
      break;
    case Activation::swigluoai:  // gpt-oss.
      c.alpha = 1.702;
      c.beta = 1.0;
      c.limit = 7.0;
      c.has_limit = true;
      break;
    case Activation::swigluoai_uninterleave:  // MiniMax-M3.
      c.alpha = 1.0;
      c.beta = 0.0;
      c.has_limit = c.limit_required = true;
      break;
    case Activation::swiglustep:  // Step-3.
      c.limit = 7.0;
      c.has_limit = true;
      break;
    case Activation::situ:  // Kimi K3.
      c.beta = 0.0;
      c.beta_required = true;
      c.has_linear_beta = true;
      break;
    default:
      break;
  }
  return c;
}

void require_known(Activation activation, const char* constant, const std::optional<double>& given, bool known) {
  require(known || !given.has_value(), "activation {} has no constant {} (given {})", name_of(activation), constant,
          given.value_or(0));
}

}  // namespace

bool is_gated(Activation activation) noexcept {
  return activation < Activation::silu_no_mul;
}

Activation without_mul(Activation activation) noexcept {
  switch (activation) {
    case Activation::silu:
      return Activation::silu_no_mul;
    case Activation::gelu:
      return Activation::gelu_no_mul;
    case Activation::gelu_tanh:
      return Activation::gelu_tanh_no_mul;
    case Activation::relu2:
      return Activation::relu2_no_mul;
    default:
      return activation;
  }
}

std::string_view name_of(Activation activation) noexcept {
  return name_in(kActivations, activation);
}
std::string_view name_of(W13Layout layout) noexcept {
  return name_in(kLayouts, layout);
}

Activation activation_from_name(std::string_view name) {
  if (name == "gelu_pytorch_tanh") return Activation::gelu_tanh;
  return value_in(kActivations, "activation", name);
}
W13Layout w13_layout_from_name(std::string_view name) {
  return value_in(kLayouts, "w13_layout", name);
}
std::span<const Activation> all_activations() noexcept {
  return kActivationValues;
}

ActivationParams resolve(Activation activation, const ActivationParams& params) {
  const Constants c = constants_of(activation);
  require_known(activation, "alpha", params.alpha, c.alpha.has_value());
  require_known(activation, "beta", params.beta, c.beta.has_value());
  require_known(activation, "limit", params.limit, c.has_limit);
  require_known(activation, "linear_beta", params.linear_beta, c.has_linear_beta);
  ActivationParams r;
  r.alpha = params.alpha.has_value() ? params.alpha : c.alpha;
  r.beta = params.beta.has_value() ? params.beta : c.beta;
  r.limit = params.limit.has_value() ? params.limit : c.limit;
  r.linear_beta = params.linear_beta;
  require(!c.limit_required || r.limit.has_value(), "activation {} needs the constant limit", name_of(activation));
  require(!r.limit.has_value() || *r.limit > 0, "activation {}: limit {}, expected more than 0", name_of(activation),
          r.limit.value_or(0));
  require(!c.beta_required || *r.beta > 0, "activation {}: beta {}, expected more than 0", name_of(activation),
          r.beta.value_or(0));
  return r;
}

}  // namespace conclave
