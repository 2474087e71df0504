// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Comparisons in f32 against the measures of verify.hpp.
#include "compare.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "conclave/verify.hpp"
#include "convert.hpp"
#include "error.hpp"

namespace conclave::cli {
namespace {

/// Entries of the shape beyond the rank mean nothing.
bool same_shape(const ConstTensorView& a, const ConstTensorView& b) {
  return a.rank == b.rank && std::equal(a.shape.begin(), a.shape.begin() + a.rank, b.shape.begin());
}

bool every_element_close(const Tensor& given, const Tensor& expected, const CaseTolerance& tolerance) {
  const auto *a = given.as<float>(), *b = expected.as<float>();
  for (std::int64_t i = 0; i < given.view().numel(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (a[i] == b[i]) continue;
    if (std::isinf(b[i])) return false;  // every error is within rtol of infinity
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
  if (!same_shape(given, expected))
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

IdComparison compare_ids(const ConstTensorView& given, const ConstTensorView& expected, std::int64_t columns) {
  IdComparison result;
  for (std::int64_t m = 0; m < given.size(0); ++m) {
    const std::int32_t *x = given.at(m).as<std::int32_t>(), *y = expected.at(m).as<std::int32_t>();
    if (std::equal(x, x + columns, y)) continue;
    result.same_order = false;
    std::vector<std::int32_t> a(x, x + columns), b(y, y + columns), common;
    std::sort(a.begin(), a.end());
    std::sort(b.begin(), b.end());
    std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(common));
    result.different += columns - static_cast<std::int64_t>(common.size());
  }
  return result;
}

}  // namespace conclave::cli
