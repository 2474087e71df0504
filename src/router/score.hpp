// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The formulas of routing in f32, one definition for every router: two routers that choose the same ids give the same
// bits. What infinities and NaN mean:
//   NaN logit    score 0 and no part in any sum; chosen after every number (choice is up to the router).
//   +inf logits  share the softmax equally; the others get 0.
//   -inf logits  score 0, unless all are -inf: then all are equal.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "conclave/routing.hpp"

namespace conclave::router {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// exp(-x) overflows below -88.7, and 1 / inf is the exact 0 that such a logit deserves.
inline float sigmoid(float x) noexcept {
  return 1.0F / (1.0F + std::exp(-x));
}

/// softplus(x) = log(1 + exp(x)) without overflow for large x and without losing small ones.
inline float sqrt_softplus(float x) noexcept {
  return std::sqrt(std::fmax(x, 0.0F) + std::log1p(std::exp(-std::fabs(x))));
}

/// The numerator of a softmax whose largest logit is `top`; inf - inf would be NaN.
inline float softmax_term(float x, float top) noexcept {
  if (std::isinf(top)) return x == top ? 1.0F : 0.0F;
  return std::exp(x - top);
}

/// s[i] = softmax(x)[i] over the numbers among x. In place is legal.
inline void softmax(const float* x, std::int64_t count, float* s) noexcept {
  float top = -kInfinity;
  for (std::int64_t i = 0; i < count; ++i) top = x[i] > top ? x[i] : top;
  // In double: thousands of terms then add without an error that depends on how they are grouped.
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    s[i] = std::isnan(x[i]) ? 0.0F : softmax_term(x[i], top);
    sum += static_cast<double>(s[i]);
  }
  const float total = static_cast<float>(sum);
  if (total == 0.0F) return;  // Nothing but NaN.
  for (std::int64_t i = 0; i < count; ++i) s[i] /= total;
}

/// Step 1, and step 4 on the chosen ones. A raw logit of -inf weighs 0: it says "never", not "minus infinitely much".
inline void score(Scoring scoring, const float* x, std::int64_t count, float* s) noexcept {
  if (scoring == Scoring::softmax) return softmax(x, count, s);
  for (std::int64_t i = 0; i < count; ++i) {
    const float v = x[i];
    if (std::isnan(v) || v == -kInfinity) {
      s[i] = 0.0F;
    } else if (scoring == Scoring::sigmoid) {
      s[i] = sigmoid(v);
    } else if (scoring == Scoring::sqrt_softplus) {
      s[i] = sqrt_softplus(v);
    } else {
      s[i] = v;
    }
  }
}

/// Step 2 without groups: what experts are ordered by. NaN where the logit or its bias is.
inline float choice_value(float ranked, float logit, const float* bias, std::int64_t expert) noexcept {
  if (std::isnan(logit)) return logit;
  return bias == nullptr ? ranked : ranked + bias[expert];
}

/// The sum of a group's best two numbers. `best` is +inf at most once here: inf + -inf must not become NaN.
inline float top2_sum(float best, float second) noexcept {
  return best == kInfinity ? best : best + second;
}

}  // namespace conclave::router
