// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Codes in memory of their own.
#include "bench_codes.hpp"

#include <algorithm>
#include <cmath>

#include "bench_weights.hpp"

namespace conclave::cli {
namespace {

/// The root mean square of random codes: uniform int8 and int4, uniform bits of e2m1, and of e4m3 below 2.
double magnitude_of_codes(const QuantScheme& scheme) {
  if (scheme.element == DType::fp8_e4m3) return 0.6;
  if (scheme.element == DType::fp4_e2m1) return 2.9;
  return scheme.bits == 4 ? 4.6 : 74.0;
}

Tensor filled(std::int64_t experts, const MatrixShape& shape, double value) {
  Tensor t(shape.dtype, {experts, shape.rows, shape.cols});
  if (shape.dtype == DType::f32) {
    std::fill_n(t.as<float>(), t.view().numel(), static_cast<float>(value));
    return t;
  }
  // The exponent of the nearest power of two: e8m0 is nothing else, and e4m3 has it above three bits of mantissa.
  const int exponent = static_cast<int>(std::lround(std::log2(value)));
  const int code = shape.dtype == DType::e8m0       ? exponent + 127
                   : shape.dtype == DType::fp8_e4m3 ? std::clamp(exponent + 7, 1, 15) << 3
                                                    : static_cast<int>(value);
  std::fill_n(t.as<std::uint8_t>(), t.view().numel(), static_cast<std::uint8_t>(code));
  return t;
}

}  // namespace

RandomCodes random_codes(QuantKey key, std::int64_t experts, std::int64_t rows, std::int64_t cols, std::uint64_t seed,
                         Executor& executor) {
  const QuantScheme scheme = scheme_of(key);
  const QuantShapes shapes = shapes_of(key, rows, cols);
  const double scale = 1.0 / std::sqrt(static_cast<double>(cols)) / magnitude_of_codes(scheme);
  RandomCodes out;
  out.elements = Tensor(shapes.elements.dtype, {experts, shapes.elements.rows, shapes.elements.cols});
  fill_random(out.elements, scale, seed, executor);
  // With a global scale the groups' own are 1.
  out.scale = filled(experts, shapes.scale, shapes.global_scale ? 1.0 : scale);
  if (shapes.global_scale) out.global_scale = filled(experts, *shapes.global_scale, scale);
  if (shapes.zero_point) out.zero_point = filled(experts, *shapes.zero_point, 8);
  return out;
}

}  // namespace conclave::cli
