// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// router/score.hpp for one lane. Exponentials are computed in double and rounded once, which is within a hair of what
// the C library's expf gives: scores that tie on the CPU must tie here, or the order of ids would differ.
#pragma once

#include <cstdint>

#include "conclave/routing.hpp"

namespace conclave::router {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;

__device__ inline float infinity() {
  return __int_as_float(0x7F800000);
}
__device__ inline float not_a_number() {
  return __int_as_float(0x7FC00000);
}

__device__ inline float exponential(float x) {
  return static_cast<float>(exp(static_cast<double>(x)));
}

/// The numerator of a softmax whose largest logit is `top`; inf - inf would be NaN.
__device__ inline float softmax_term(float x, float top) {
  if (isinf(top)) return x == top ? 1.0F : 0.0F;
  return exponential(__fsub_rn(x, top));
}

/// Every scoring but the softmax, whose sum needs the row.
__device__ inline float score_alone(Scoring scoring, float x) {
  if (isnan(x) || x == -infinity()) return 0.0F;
  if (scoring == Scoring::sigmoid) return __fdiv_rn(1.0F, __fadd_rn(1.0F, exponential(-x)));
  if (scoring == Scoring::sqrt_softplus)
    return __fsqrt_rn(
        __fadd_rn(fmaxf(x, 0.0F), static_cast<float>(log1p(static_cast<double>(exponential(-fabsf(x)))))));
  return x;
}

__device__ inline float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}
/// The same bits in every lane.
__device__ inline double warp_sum(double x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

/// selection.hpp's rank plus 1: larger is better, NaN is 1, an expert of a group that lost 2, and 0 is free for
/// "taken".
__device__ inline std::uint32_t rank_from_one(float value) {
  if (isnan(value)) return 1;
  const std::uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0F));
  return (bits ^ ((0U - (bits >> 31)) | 0x80000000U)) + 1;
}

}  // namespace conclave::router
