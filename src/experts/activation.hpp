// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: one gate and one up value (or x alone), f32. Out: the activation of include/conclave/activation.hpp, f32.
// The scalars are inline so that every kernel's tail and epilogue computes the same formula as the reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/host_device.hpp"
#include "conclave/activation.hpp"

namespace conclave::experts {

/// An activation with all constants filled in: what kernels carry instead of optionals.
struct ActivationFn {
  Activation kind = Activation::silu;
  float alpha = 1.0f;
  float beta = 0.0f;
  float limit = INFINITY;  ///< Infinite where has_limit is false, so that clamping is always the right thing to do.
  float linear_beta = 0.0f;
  bool has_limit = false;
  bool gated = true;
};

/// Throws Error where resolve() of the public API does.
ActivationFn make_activation(Activation activation, const ActivationParams& params);

/// x * sigmoid(x) in every formula below goes through this division: for x below -88 exp overflows to infinity and the
/// quotient becomes -0, not NaN.
CONCLAVE_HOST_DEVICE inline float sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}
CONCLAVE_HOST_DEVICE inline float silu(float x) {
  return x / (1.0f + std::exp(-x));
}
CONCLAVE_HOST_DEVICE inline float gelu_erf(float x) {
  constexpr float kInvSqrt2 = 0.70710678118654752f;
  return 0.5f * x * (1.0f + std::erf(x * kInvSqrt2));
}
CONCLAVE_HOST_DEVICE inline float gelu_tanh(float x) {
  constexpr float kSqrt2OverPi = 0.79788456080286536f;
  return 0.5f * x * (1.0f + std::tanh(kSqrt2OverPi * (x + 0.044715f * x * x * x)));
}
CONCLAVE_HOST_DEVICE inline float relu2(float x) {
  const float positive = x < 0.0f ? 0.0f : x;  // Written so that NaN stays NaN.
  return positive * positive;
}
/// std::min and std::clamp with the value first keep NaN, as the original implementations do.
CONCLAVE_HOST_DEVICE inline float clamp_top(float x, float limit) {
  return std::min(x, limit);
}
CONCLAVE_HOST_DEVICE inline float clamp_both(float x, float limit) {
  return std::clamp(x, -limit, limit);
}

/// The gated forms. `fn.gated` must hold.
CONCLAVE_HOST_DEVICE inline float activate(const ActivationFn& fn, float gate, float up) {
  switch (fn.kind) {
    case Activation::silu:
      return silu(clamp_top(gate, fn.limit)) * clamp_both(up, fn.limit);
    case Activation::gelu:
      return gelu_erf(gate) * up;
    case Activation::gelu_tanh:
      return gelu_tanh(gate) * up;
    case Activation::relu2:
      return relu2(gate) * up;
    case Activation::swigluoai:  // beta is 1 here unless the caller says otherwise.
    case Activation::swigluoai_uninterleave: {
      const float g = clamp_top(gate, fn.limit);
      return g * sigmoid(fn.alpha * g) * (clamp_both(up, fn.limit) + fn.beta);
    }
    case Activation::swiglustep:
      return clamp_top(silu(gate), fn.limit) * clamp_both(up, fn.limit);
    case Activation::situ: {
      const float bounded_up = fn.linear_beta > 0.0f ? fn.linear_beta * std::tanh(up / fn.linear_beta) : up;
      return fn.beta * std::tanh(gate / fn.beta) * sigmoid(gate) * bounded_up;
    }
    default:
      return NAN;  // Not gated: a caller's mistake that must not pass for a number.
  }
}

/// The forms without a product. `fn.gated` must not hold.
CONCLAVE_HOST_DEVICE inline float activate(const ActivationFn& fn, float x) {
  switch (fn.kind) {
    case Activation::silu_no_mul:
      return silu(x);
    case Activation::gelu_no_mul:
      return gelu_erf(x);
    case Activation::gelu_tanh_no_mul:
      return gelu_tanh(x);
    case Activation::relu2_no_mul:
      return relu2(x);
    default:
      return NAN;
  }
}

/// Row of gate and of up value `i` among the rows of w13; both are `i` where there is no gate.
struct W13Rows {
  std::int64_t gate;
  std::int64_t up;
};
CONCLAVE_HOST_DEVICE constexpr W13Rows w13_rows_of(W13Layout layout, bool gated, std::int64_t i,
                                                   std::int64_t intermediate_size) {
  if (!gated) return {i, i};
  switch (layout) {
    case W13Layout::gate_up:
      return {i, intermediate_size + i};
    case W13Layout::up_gate:
      return {intermediate_size + i, i};
    case W13Layout::interleaved:
      return {2 * i, 2 * i + 1};
  }
  return {i, i};
}

/// `in`: one row of the first product, in w13's row order. `out`: intermediate_size values. Out must not overlap in.
void activate_row(const ActivationFn& fn, W13Layout layout, const float* in, float* out,
                  std::int64_t intermediate_size);

}  // namespace conclave::experts
