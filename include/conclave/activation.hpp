// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The non-linearity between the two expert products: names, constants, and how the rows of w13 are ordered.
// Formulas, with g = gate and u = up (vLLM's MoEActivation, Sept 2026, is the source of names and constants):
//
//   silu                   silu(min(g, L)) * clamp(u, -L, L)                    L absent: silu(g) * u
//   gelu, gelu_tanh        gelu(g) * u, with erf or the tanh approximation
//   relu2                  max(g, 0)^2 * u
//   swigluoai              (clamp(u, -L, L) + 1) * g' * sigmoid(alpha * g'),    g' = min(g, L); alpha 1.702, L 7
//   swigluoai_uninterleave g' * sigmoid(alpha * g') * (clamp(u, -L, L) + beta), L required; alpha 1, beta 0
//   swiglustep             min(silu(g), L) * clamp(u, -L, L), L 7 (the clamp comes after silu)
//   situ                   b * tanh(g / b) * sigmoid(g) * (lb > 0 ? lb * tanh(u / lb) : u), b = beta > 0 required
//   *_no_mul               the function of x alone; w13 then has I rows, not 2I
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace conclave {

enum class Activation : std::uint8_t {
  silu,
  gelu,
  gelu_tanh,
  relu2,
  swigluoai,
  swigluoai_uninterleave,
  swiglustep,
  situ,
  silu_no_mul,
  gelu_no_mul,
  gelu_tanh_no_mul,
  relu2_no_mul,
};

/// Constants of an activation; absent means the default of its formula.
struct ActivationParams {
  std::optional<double> alpha;
  std::optional<double> beta;         ///< swigluoai_uninterleave: added to u. situ: b.
  std::optional<double> limit;        ///< L.
  std::optional<double> linear_beta;  ///< situ: lb.
  bool operator==(const ActivationParams&) const = default;
};

/// How the 2I rows of w13 alternate. Part of the weight, never guessed from the activation.
enum class W13Layout : std::uint8_t {
  gate_up,      ///< rows [0, I) gate, [I, 2I) up
  up_gate,      ///< rows [0, I) up, [I, 2I) gate
  interleaved,  ///< row 2i gate, row 2i + 1 up
};

/// True if w13 holds gate and up.
bool is_gated(Activation activation) noexcept;
/// The same function without the product: silu -> silu_no_mul; itself where there is none.
Activation without_mul(Activation activation) noexcept;
/// Rows of w13 for intermediate size I: 2I if gated, else I.
constexpr std::int64_t w13_rows(bool gated, std::int64_t intermediate_size) noexcept {
  return gated ? 2 * intermediate_size : intermediate_size;
}

std::string_view name_of(Activation activation) noexcept;
std::string_view name_of(W13Layout layout) noexcept;
/// Accepts the names above and the alias gelu_pytorch_tanh. Throws Error naming the value and every legal name.
Activation activation_from_name(std::string_view name);
W13Layout w13_layout_from_name(std::string_view name);
std::span<const Activation> all_activations() noexcept;

/// `params` with every absent constant replaced by the default of the formula. Throws Error where a required constant
/// is missing or out of range, or a constant is given that the formula does not have.
ActivationParams resolve(Activation activation, const ActivationParams& params);

}  // namespace conclave
