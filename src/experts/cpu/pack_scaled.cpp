// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: codes and scales. Out: panels.
#include "experts/cpu/pack_scaled.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "base/error.hpp"
#include "cpu/parallel_for.hpp"
#include "quant/elements.hpp"

namespace conclave::experts::grouped {
namespace {

constexpr std::uint8_t kSymmetricZero = 8;

const std::uint8_t* bytes_at(const ConstTensorView& view, std::int64_t row) {
  return static_cast<const std::uint8_t*>(view.data) + row * view.stride(0);
}

/// One value of each column: scales, zero points.
template <class T, class Value>
std::uint8_t* put_columns(std::uint8_t* to, std::int64_t num_columns, Value&& value) {
  for (std::int64_t j = 0; j < num_columns; ++j) {
    const T x = value(j);
    std::memcpy(to + j * static_cast<std::int64_t>(sizeof(T)), &x, sizeof(T));
  }
  return to + num_columns * static_cast<std::int64_t>(sizeof(T));
}

std::uint8_t two_nibbles(std::uint8_t low, std::uint8_t high) {
  return static_cast<std::uint8_t>(low | high << 4);
}

/// Codes of the four k of 8 bits or eight of 4 that one step takes: value(column, k of the step).
template <class Value>
std::uint8_t* put_step(CodeOrder order, int bits, std::int64_t num_columns, Value&& value, std::uint8_t* to) {
  using Four = std::array<std::uint8_t, 4>;
  const auto put_four = [&](auto&& byte) {
    return put_columns<Four>(to, num_columns, [&](std::int64_t j) {
      return Four{byte(j, 0), byte(j, 1), byte(j, 2), byte(j, 3)};
    });
  };
  switch (order) {
    case CodeOrder::quads:
      return put_four([&](std::int64_t j, std::int64_t i) {
        return bits == 8 ? value(j, i) : two_nibbles(value(j, i), value(j, i + 4));
      });
    case CodeOrder::octets:
      return put_four(
          [&](std::int64_t j, std::int64_t i) { return two_nibbles(value(j, 2 * i), value(j, 2 * i + 1)); });
    case CodeOrder::pairs:
      for (std::int64_t half = 0; half < 2; ++half)
        for (std::int64_t k = 0; k < 4; k += 2)
          to = put_columns<std::array<std::uint8_t, 2>>(to, num_columns / 2, [&](std::int64_t j) {
            const std::int64_t column = half * (num_columns / 2) + j;
            return std::array{value(column, k), value(column, k + 1)};
          });
      return to;
  }
  return to;
}

/// Index of the first e4m3 NaN among `count` codes; -1: none.
std::int64_t find_nan(const std::uint8_t* codes, std::int64_t count) {
  const std::uint8_t* end = codes + count;
  const std::uint8_t* at = std::find_if(codes, end, [](std::uint8_t c) { return (c & 0x7F) == quant::kNanE4m3; });
  return at == end ? -1 : at - codes;
}

void check_matrix_codes(const char* name, const ConstTensorView& w, Executor& executor) {
  const std::int64_t rows = w.size(0) * w.size(1);
  std::atomic<std::int64_t> bad{rows};
  cpu::parallel_for(executor, rows, 64, [&](std::int64_t begin, std::int64_t end, int /*thread*/) {
    for (std::int64_t r = begin; r < end; ++r) {
      if (find_nan(bytes_at(w.at(r / w.size(1)), r % w.size(1)), w.size(2)) < 0) continue;
      std::int64_t before = bad.load();
      while (r < before && !bad.compare_exchange_weak(before, r)) {
      }
      return;
    }
  });
  const std::int64_t r = bad.load();
  if (r == rows) return;
  const std::int64_t expert = r / w.size(1), row = r % w.size(1);
  fail(ErrorKind::invalid_argument, "{}: element [{}, {}, {}] is NaN, expected a number", name, expert, row,
       find_nan(bytes_at(w.at(expert), row), w.size(2)));
}

/// e4m3 codes times rows are 2^-80 of their value with AVX2 (codes_avx2.hpp), and the scales make up for it.
constexpr float kScaleLimit = 0x1p47f;

void check_scale_size(const char* name, DType dtype, const ConstTensorView& scales) {
  if (scales.rank > 1) {
    for (std::int64_t i = 0; i < scales.size(0); ++i) check_scale_size(name, dtype, scales.at(i));
    return;
  }
  for (std::int64_t i = 0; i < scales.size(0); ++i) {
    const std::int64_t at = i * scales.stride(0);
    const float scale =
        dtype == DType::f32 ? scales.as<float>()[at] : quant::e8m0_to_f32(scales.as<std::uint8_t>()[at]);
    require(scale < kScaleLimit, "{}: given a scale of {}, expected less than 2^47", name, scale);
  }
}

}  // namespace

ScaledSource::ScaledSource(const ScaledFormat& format, const quant::ExpertMatrices& matrices)
    : format_(format),
      matrices_(matrices),
      key_format_(quant::format_of(matrices.parts[0].matrix.key, matrices.parts[0].matrix.role)) {}

ScaledSource::Place ScaledSource::place(std::int64_t row) const noexcept {
  for (const quant::ExpertMatrix& part : matrices_) {
    const std::int64_t from = row - part.first_row;
    if (from >= 0 && from % part.row_step == 0 && from / part.row_step < part.matrix.rows)
      return {&part.matrix, from / part.row_step};
  }
  return {&matrices_.parts[0].matrix, row};
}

/// Offset of the scale (and of the zero point) of (row, k).
std::int64_t ScaledSource::scale_index(const ConstQuantMatrix& m, std::int64_t row, std::int64_t k) const noexcept {
  const std::int64_t group_row = key_format_.group.rows < 0 ? 0 : row / key_format_.group.rows;
  const std::int64_t group_col = key_format_.group.cols < 0 ? 0 : k / key_format_.group.cols;
  return group_row * m.scale.stride(0) + group_col * m.scale.stride(1);
}

float ScaledSource::scale(std::int64_t row, std::int64_t k) const noexcept {
  const Place at = place(row);
  return at.matrix->scale.as<float>()[scale_index(*at.matrix, at.row, k)];
}

std::uint8_t ScaledSource::scale_code(std::int64_t row, std::int64_t k) const noexcept {
  const Place at = place(row);
  return static_cast<const std::uint8_t*>(at.matrix->scale.data)[scale_index(*at.matrix, at.row, k)];
}

float ScaledSource::global_scale(std::int64_t row) const noexcept {
  return place(row).matrix->global_scale.as<float>()[0];
}

std::uint8_t ScaledSource::zero_point(std::int64_t row, std::int64_t k) const noexcept {
  if (!key_format_.zero_points) return kSymmetricZero;
  const Place at = place(row);
  const ConstTensorView& z = at.matrix->zero_point;
  const std::int64_t group_col = key_format_.group.cols < 0 ? 0 : k / key_format_.group.cols;
  return static_cast<const std::uint8_t*>(z.data)[at.row * z.stride(0) + group_col * z.stride(1)];
}

std::uint8_t ScaledSource::code(std::int64_t row, std::int64_t k) const noexcept {
  const Place at = place(row);
  const std::uint8_t* bytes = bytes_at(at.matrix->elements, at.row);
  return format_.bits == 4 ? quant::nibble(bytes, k) : bytes[k];
}

void pack_scaled_panel(const SourceMatrix& source, const ScaledSource& codes, std::int64_t p, std::int64_t k,
                       std::uint8_t* panel) {
  const ScaledFormat& f = codes.format();
  const std::int64_t num_columns = source.engine->panel_columns;
  const std::int64_t k_end = codes.columns();
  const auto row = [&](std::int64_t j) { return source.row(p, j); };
  const std::int64_t step = 4 * (8 / f.bits);
  for (std::int64_t k0 = 0; k0 < k; k0 += f.scale_group) {
    if (f.has_global_scale && k0 % f.group == 0)
      panel = put_columns<float>(panel, num_columns,
                                 [&](std::int64_t j) { return row(j) < 0 ? 0.0f : codes.global_scale(row(j)); });
    // A part that lies behind the last value has no scale of its own: 0, or the smallest.
    const auto exists = [&](std::int64_t j) { return row(j) >= 0 && k0 < k_end; };
    if (f.scale == DType::f32) {
      panel = put_columns<float>(panel, num_columns,
                                 [&](std::int64_t j) { return exists(j) ? codes.scale(row(j), k0) : 0.0f; });
    } else {
      panel = put_columns<std::uint8_t>(panel, num_columns, [&](std::int64_t j) {
        return exists(j) ? codes.scale_code(row(j), k0) : std::uint8_t{0};
      });
    }
    const auto zero_point = [&](std::int64_t j) {
      return exists(j) && f.has_zero_points ? codes.zero_point(row(j), k0) : std::uint8_t{0};
    };
    if (f.has_zero_points) panel = put_columns<std::uint8_t>(panel, num_columns, zero_point);
    const auto value = [&](std::int64_t j, std::int64_t at) {
      return row(j) >= 0 && at < k_end ? codes.code(row(j), at) : zero_point(j);
    };
    for (std::int64_t i = k0; i < k0 + f.scale_group; i += step) {
      panel = put_step(
          f.order, f.bits, num_columns, [&](std::int64_t j, std::int64_t at) { return value(j, i + at); }, panel);
    }
  }
}

void check_codes(const Problem& problem, const ExpertWeights& weights, Executor& executor) {
  const QuantScheme scheme = scheme_of(problem.quant.weights);
  if (scheme.element != DType::fp8_e4m3) return;
  check_scale_size("w13_scale", scheme.scale->dtype, *weights.w13_scale);
  check_scale_size("w2_scale", scheme.scale->dtype, *weights.w2_scale);
  check_matrix_codes("w13", weights.w13, executor);
  check_matrix_codes("w2", weights.w2, executor);
}

}  // namespace conclave::experts::grouped
