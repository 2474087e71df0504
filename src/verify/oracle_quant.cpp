// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: codes and scales, or a row of numbers. Out: what they stand for, or what would be left of them.
#include "verify/oracle_quant.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "verify/element.hpp"

namespace conclave::verify_detail {
namespace {

constexpr double kOracleNan = std::numeric_limits<double>::quiet_NaN();

/// The magnitudes of e2m1 in the order of their codes.
const std::vector<double>& e2m1_values() {
  static const std::vector<double> values{0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return values;
}

/// The magnitudes of e4m3 in the order of their codes, NaN left out.
const std::vector<double>& e4m3_values() {
  static const std::vector<double> values = [] {
    std::vector<double> list;
    for (int code = 0; code < 127; ++code)
      list.push_back(code < 8 ? code / 512.0 : std::ldexp(1 + code % 8 / 8.0, code / 8 - 7));
    return list;
  }();
  return values;
}

/// The nearest of increasing magnitudes; between two, the one with the even code; beyond the last, the last.
double nearest(const std::vector<double>& values, double x) {
  if (std::isnan(x)) return x;
  const double a = std::fabs(x);
  std::size_t best = 0;
  for (std::size_t code = 1; code < values.size(); ++code) {
    const double near = std::fabs(values[code] - a), so_far = std::fabs(values[best] - a);
    if (near < so_far || (near == so_far && code % 2 == 0)) best = code;
  }
  return std::copysign(values[best], x);
}

double amax_of(const double* x, std::int64_t count) {
  double amax = 0;
  for (std::int64_t i = 0; i < count; ++i) amax = std::fabs(x[i]) > amax ? std::fabs(x[i]) : amax;
  return amax;
}

double largest_code(DType element) {
  return element == DType::fp8_e4m3 ? 448 : element == DType::fp4_e2m1 ? 6 : 127;
}

double round_element(DType element, double steps) {
  if (element == DType::fp8_e4m3) return nearest(e4m3_values(), steps);
  if (element == DType::fp4_e2m1) return nearest(e2m1_values(), steps);
  return std::clamp(std::nearbyint(steps), -127.0, 127.0);
}

/// The scale of one group in its own type; `global` is above it.
double group_scale(const QuantScheme& scheme, double amax, double global) {
  if (scheme.scale->dtype == DType::f32) return std::max(amax, 1e-12) / largest_code(scheme.element);
  if (scheme.scale->dtype == DType::fp8_e4m3) return nearest(e4m3_values(), amax / 6 / global);
  const int largest_exponent = scheme.element == DType::fp8_e4m3 ? 8 : 2;
  return amax > 0 ? std::ldexp(1.0, std::max(std::ilogb(amax) - largest_exponent, -127)) : std::ldexp(1.0, -127);
}

/// The code of an element as the number that its scale multiplies.
double element_value(const QuantScheme& scheme, const ConstTensorView& rows, std::int64_t r, std::int64_t c,
                     double zero_point) {
  const auto* row = rows.as<std::uint8_t>() + r * rows.stride(0);
  if (scheme.bits == 8) {
    if (scheme.element == DType::i8) return static_cast<std::int8_t>(row[c]);
    const int code = row[c];
    return code % 128 == 127 ? kOracleNan
                             : std::copysign(e4m3_values()[static_cast<std::size_t>(code % 128)], 127.5 - code);
  }
  const int code = c % 2 == 0 ? row[c / 2] % 16 : row[c / 2] / 16;
  if (scheme.element == DType::i8) return code - zero_point;
  return (code < 8 ? 1 : -1) * e2m1_values()[static_cast<std::size_t>(code % 8)];
}

bool is_up(W13Layout layout, std::int64_t row, std::int64_t intermediate_size) {
  if (layout == W13Layout::interleaved) return row % 2 == 1;
  return (row >= intermediate_size) == (layout == W13Layout::gate_up);
}

/// The tensors of one matrix, and where its scales are.
struct Source {
  const MoeConfig& moe;
  std::int64_t expert;

  std::int64_t group(const ConstTensorView& scales, GroupShape shape, std::int64_t r) const {
    if (shape.rows > 0) return r / shape.rows;
    return scales.size(1) == 2 && is_up(moe.w13_layout, r, moe.intermediate_size) ? 1 : 0;
  }
  double at(const ConstTensorView& scales, GroupShape shape, std::int64_t r, std::int64_t c) const {
    const std::int64_t column = shape.cols > 0 ? c / shape.cols : 0;
    return load(scales,
                expert * scales.stride(0) + group(scales, shape, r) * scales.stride(1) + column * scales.stride(2));
  }
};

}  // namespace

std::vector<double> oracle_dequantise(const MoeConfig& moe, QuantKey key, const ExpertWeights& w, std::int64_t expert,
                                      bool is_w13) {
  const QuantScheme scheme = scheme_of(key);
  const ConstTensorView elements = (is_w13 ? w.w13 : w.w2).at(expert);
  const auto& scale = is_w13 ? w.w13_scale : w.w2_scale;
  const auto& global = is_w13 ? w.w13_global_scale : w.w2_global_scale;
  const auto& zero = is_w13 ? w.w13_zero_point : w.w2_zero_point;
  const std::int64_t cols = is_w13 ? moe.expert_width() : moe.intermediate_size;
  const Source source{moe, expert};
  std::vector<double> values;
  for (std::int64_t r = 0; r < elements.size(0); ++r)
    for (std::int64_t c = 0; c < cols; ++c) {
      const double point = zero ? source.at(*zero, scheme.scale->group, r, c) : 8;
      double value = element_value(scheme, elements, r, c, point) * source.at(*scale, scheme.scale->group, r, c);
      if (global) value *= source.at(*global, scheme.scale2->group, r, c);
      values.push_back(value);
    }
  return values;
}

void oracle_requantise(QuantKey key, std::vector<double>& row, double given) {
  if (key == QuantKey::none) return;
  const QuantScheme scheme = scheme_of(key);
  const auto size = static_cast<std::int64_t>(row.size());
  const bool one_for_all = scheme.scale->group.rows < 0;
  double global = 1;
  if (scheme.scale2) global = scheme.scale2->dynamic ? std::max(amax_of(row.data(), size), 1e-12) / 2688 : given;
  const std::int64_t width = scheme.scale->group.cols < 0 ? size : scheme.scale->group.cols;
  for (std::int64_t first = 0; first < size; first += width) {
    const std::int64_t count = std::min(width, size - first);
    double* x = row.data() + first;
    const double scale = one_for_all ? given : group_scale(scheme, amax_of(x, count), global) * global;
    for (std::int64_t i = 0; i < count; ++i)
      x[i] = scale == 0 ? 0 : round_element(scheme.element, x[i] / scale) * scale;
  }
}

bool oracle_spans_the_batch(QuantKey key) noexcept {
  const QuantScheme scheme = scheme_of(key);
  return scheme.scale && scheme.scale->dynamic && scheme.scale->group.rows < 0;
}

double oracle_batch_scale(QuantKey key, double amax) noexcept {
  return std::max(amax, 1e-12) / largest_code(scheme_of(key).element);
}

}  // namespace conclave::verify_detail
