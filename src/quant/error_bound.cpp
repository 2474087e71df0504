// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a key of weights. Out: what it costs at most, as the error of a block's output.
#include "conclave/quantise.hpp"

namespace conclave {

// Weights of a trained model are close to normal: the largest of 32 is about 2.1 deviations, of 128 about 2.7, of a row
// about 3.5. Rounding to steps of a size s errs by s / sqrt(12) in the mean square, and three products, of which two
// are multiplied, add up to sqrt(3) of it. The bounds are that estimate and some room, in one digit.
double error_bound(QuantKey key) noexcept {
  const QuantScheme scheme = scheme_of(key);
  if (scheme.bits == 0) return 0.0;
  // Three bits of mantissa: steps of 1/16 to 1/8 of the value, whatever the scale.
  if (scheme.element == DType::fp8_e4m3) return 0.06;
  // Steps of half the value near its powers of two; a scale that is a power of two leaves up to half of the range idle.
  if (scheme.element == DType::fp4_e2m1) return key == QuantKey::mxfp4 ? 0.3 : 0.2;
  if (scheme.bits == 8) return 0.02;
  const std::int64_t group = scheme.scale->group.cols;
  return group < 0 ? 0.4 : group == 32 ? 0.2 : 0.3;
}

}  // namespace conclave
