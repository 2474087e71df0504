// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: two tensors of one shape. Out: their relative error and their largest difference.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "conclave/verify.hpp"
#include "verify/element.hpp"

namespace conclave {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Differences {
  double squares = 0;  ///< Of a - b.
  double norm = 0;     ///< Squares of b.
  double largest = 0;  ///< |a - b|.
};

/// Where both are NaN, or both the same infinity, they agree; where one is not finite and the other differs, the
/// difference is infinite.
double difference(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double d = std::fabs(a - b);
  return std::isfinite(d) ? d : kInfinity;
}

Differences compare(const ConstTensorView& a, const ConstTensorView& b) {
  bool same = a.rank == b.rank;
  for (int d = 0; same && d < a.rank; ++d) same = a.size(d) == b.size(d);
  require(same, "relative_error: given {} and {}, expected equal shapes", to_string(a), to_string(b));
  const std::vector<double> x = verify_detail::to_doubles(a);
  const std::vector<double> y = verify_detail::to_doubles(b);
  Differences result;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double d = difference(x[i], y[i]);
    result.squares += d * d;
    if (std::isfinite(y[i])) result.norm += y[i] * y[i];
    result.largest = std::max(result.largest, d);
  }
  return result;
}

}  // namespace

double relative_error(const ConstTensorView& a, const ConstTensorView& b) {
  const Differences d = compare(a, b);
  if (d.squares == 0) return 0;
  return d.norm == 0 ? kInfinity : std::sqrt(d.squares / d.norm);
}

double max_abs_error(const ConstTensorView& a, const ConstTensorView& b) {
  return compare(a, b).largest;
}

}  // namespace conclave
