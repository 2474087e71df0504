// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a key of weights. Out: what it costs at most, as the error of a block's output.
#include "conclave/quantise.hpp"

namespace conclave {

// Weights of a trained model are close to normal: a group's largest of n is about 2.2 (n = 32), 2.6 (128) or 3.5 (a row
// or tensor) deviations. Rounding to steps of a size s errs by s / sqrt(12) in the mean square, and three products, of
// which two are multiplied, add up to sqrt(3) of it. The bounds are that estimate times 1.5, rounded up.
double error_bound(QuantKey key) noexcept {
  const QuantScheme scheme = scheme_of(key);
  if (scheme.bits == 0) return 0.0;
  // Three bits of mantissa: steps of 1/16 to 1/8 of the value, whatever the scale.
  if (scheme.element == DType::fp8_e4m3) return 0.07;
  // Steps of half the value near its powers of two; a scale that is a power of two leaves up to half of the range idle.
  if (scheme.element == DType::fp4_e2m1) return key == QuantKey::mxfp4 ? 0.35 : 0.25;
  if (scheme.bits == 8) return 0.03;
  return scheme.scale->group.cols < 0 ? 0.45 : 0.3;
}

}  // namespace conclave
