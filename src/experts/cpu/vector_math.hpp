// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: gate and up values in registers. Out: the activation, for the formulas that need no more than exp. Compiled once
// for each instruction set, hence the anonymous namespace.
#pragma once

#include "experts/activation.hpp"

namespace conclave::experts::grouped {
namespace {

/// exp within 2 units in the last place, for |x| up to 86; beyond, the value at that bound, which every formula below
/// treats like 0 or infinity. x = n ln2 + r with |r| <= ln2 / 2; ln2 in two parts, of which the first has so few bits
/// that n times it is exact; e^r by a polynomial of degree 6 (the minimax coefficients of Cephes' expf).
template <class S>
inline typename S::Vec exp(typename S::Vec x) {
  using Vec = typename S::Vec;
  x = S::at_least(S::at_most(x, S::set(88.3f)), S::set(-86.6f));
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const Vec magic = S::set(12582912.0f);
  const Vec shifted = S::multiply_add(x, S::set(1.44269504f), magic);
  const Vec n = shifted - magic;
  Vec r = S::multiply_add(n, S::set(-0.693359375f), x);
  r = S::multiply_add(n, S::set(2.12194440e-4f), r);
  Vec p = S::set(1.9875691500e-4f);
  p = S::multiply_add(p, r, S::set(1.3981999507e-3f));
  p = S::multiply_add(p, r, S::set(8.3334519073e-3f));
  p = S::multiply_add(p, r, S::set(4.1665795894e-2f));
  p = S::multiply_add(p, r, S::set(1.6666665459e-1f));
  p = S::multiply_add(p, r, S::set(5.0000001201e-1f));
  p = S::multiply_add(p, r * r, r) + S::set(1.0f);
  return S::scale(p, shifted);
}

/// x * sigmoid(y).
template <class S>
inline typename S::Vec times_sigmoid(typename S::Vec x, typename S::Vec y) {
  return x / (S::set(1.0f) + exp<S>(-y));
}

/// 0.5 (1 + tanh(y)) = sigmoid(2y), so no cancellation for negative x.
template <class S>
inline typename S::Vec gelu_tanh(typename S::Vec x) {
  const typename S::Vec inner = S::multiply_add(x * x * x, S::set(0.044715f), x);
  return times_sigmoid<S>(x, inner * S::set(2.0f * 0.79788456080286536f));
}

template <class S>
inline typename S::Vec relu2(typename S::Vec x) {
  const typename S::Vec positive = S::at_least(x, S::set(0.0f));
  return positive * positive;
}

/// False where only the scalar form exists (erf, tanh).
inline bool has_vector_form(Activation kind) {
  return kind != Activation::gelu && kind != Activation::gelu_no_mul && kind != Activation::situ;
}

/// The formulas of include/conclave/activation.hpp. `u` is ignored where there is no gate.
template <class S>
inline typename S::Vec activate(const ActivationFn& fn, typename S::Vec g, typename S::Vec u) {
  using Vec = typename S::Vec;
  const Vec limit = S::set(fn.limit);
  const Vec low = S::set(-fn.limit);
  switch (fn.kind) {
    case Activation::silu: {
      const Vec gate = S::at_most(g, limit);
      return times_sigmoid<S>(gate, gate) * S::at_least(S::at_most(u, limit), low);
    }
    case Activation::gelu_tanh:
      return gelu_tanh<S>(g) * u;
    case Activation::relu2:
      return relu2<S>(g) * u;
    case Activation::swigluoai:
    case Activation::swigluoai_uninterleave: {
      const Vec gate = S::at_most(g, limit);
      const Vec up = S::at_least(S::at_most(u, limit), low) + S::set(fn.beta);
      return times_sigmoid<S>(gate, gate * S::set(fn.alpha)) * up;
    }
    case Activation::swiglustep:
      return S::at_most(times_sigmoid<S>(g, g), limit) * S::at_least(S::at_most(u, limit), low);
    case Activation::silu_no_mul:
      return times_sigmoid<S>(g, g);
    case Activation::gelu_tanh_no_mul:
      return gelu_tanh<S>(g);
    case Activation::relu2_no_mul:
      return relu2<S>(g);
    case Activation::gelu:
    case Activation::gelu_no_mul:
    case Activation::situ:
      break;
  }
  return g;  // Not reached: has_vector_form().
}

}  // namespace
}  // namespace conclave::experts::grouped
