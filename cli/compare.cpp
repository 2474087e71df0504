// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Comparisons in f32 against the measures of verify.hpp.
#include "compare.hpp"

#include <cmath>

#include "conclave/verify.hpp"
#include "convert.hpp"
#include "error.hpp"

namespace conclave::cli {
namespace {

bool every_element_close(const Tensor& given, const Tensor& expected, const CaseTolerance& tolerance) {
  const auto *a = given.as<float>(), *b = expected.as<float>();
  for (std::int64_t i = 0; i < given.view().numel(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (a[i] == b[i]) continue;  // equal infinities, whose difference is NaN
    const double error = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(error <= tolerance.atol + tolerance.rtol * std::abs(static_cast<double>(b[i])))) return false;
  }
  return true;
}

}  // namespace

Tolerance tolerance_of(DType dtype) {
  return {dtype == DType::f32 ? 1e-5 : 6e-3, std::nullopt};
}

std::string to_string(const Tolerance& tolerance) {
  if (!tolerance.per_element) return fmt::format("{:.0e}", tolerance.relative);
  return fmt::format("atol {:.0e} rtol {:.0e}", tolerance.per_element->atol, tolerance.per_element->rtol);
}

Comparison compare(const ConstTensorView& given, const ConstTensorView& expected, const Tolerance& tolerance,
                   Executor& executor) {
  if (given.rank != expected.rank || given.shape != expected.shape)
    bad_input("expected output: {}, but the layer's is {}", to_string(expected), to_string(given));
  const Tensor a = convert(given, DType::f32, "output", executor);
  const Tensor b = convert(expected, DType::f32, "expected output", executor);
  Comparison result;
  result.max_abs = max_abs_error(a, b);
  result.relative = relative_error(a, b);
  result.ok =
      tolerance.per_element ? every_element_close(a, b, *tolerance.per_element) : result.relative < tolerance.relative;
  return result;
}

std::int64_t count_different_ids(const ConstTensorView& given, const ConstTensorView& expected, std::int64_t columns) {
  std::int64_t different = 0;
  for (std::int64_t m = 0; m < given.size(0); ++m)
    for (std::int64_t slot = 0; slot < columns; ++slot)
      different += given.at(m).as<std::int32_t>()[slot] != expected.at(m).as<std::int32_t>()[slot] ? 1 : 0;
  return different;
}

}  // namespace conclave::cli
