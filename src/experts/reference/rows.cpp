// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: rows with their experts. Out: w2 . act(w13 . row + b13) + b2, in four passes over a wave of rows.
#include "experts/reference/rows.hpp"

#include <algorithm>

#include "cpu/float_convert.hpp"
#include "cpu/parallel_for.hpp"

namespace conclave::experts::reference {
namespace {

/// Below this many products a parallel region costs more than the work.
constexpr std::int64_t kProductsWorthThreads = 16384;

/// weight [n] . x [n], the weight converted in chunks that stay in the first-level cache. Four sums instead of one let
/// additions overlap; their number is fixed, so the order of additions is too.
double dot(const void* weight, DType dtype, const float* x, std::int64_t n) {
  constexpr std::int64_t kChunk = 512;
  constexpr std::int64_t kSums = 4;
  float w[kChunk];
  double sums[kSums] = {};
  for (std::int64_t begin = 0; begin < n; begin += kChunk) {
    const std::int64_t count = std::min(kChunk, n - begin);
    cpu::load_f32(static_cast<const std::byte*>(weight) + bytes_of(dtype, begin), dtype, count, w);
    std::int64_t i = 0;
    for (; i + kSums <= count; i += kSums)
      for (std::int64_t s = 0; s < kSums; ++s)
        sums[s] += static_cast<double>(w[i + s]) * static_cast<double>(x[begin + i + s]);
    for (; i < count; ++i) sums[0] += static_cast<double>(w[i]) * static_cast<double>(x[begin + i]);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// out(r)[n] = matrix[expert of r, n] . in[r] + bias[expert of r, n] for all rows r and matrix rows n.
template <class Out>
void product(std::span<const Row> rows, const ConstTensorView& matrix, const Tensor& bias, const TensorView& in,
             Executor& executor, Out&& out) {
  const std::int64_t outputs = matrix.size(1);
  const std::int64_t inputs = matrix.size(2);
  const auto num_rows = static_cast<std::int64_t>(rows.size());
  cpu::parallel_for(executor, num_rows * outputs, kProductsWorthThreads / std::max<std::int64_t>(1, inputs),
                    [&](std::int64_t begin, std::int64_t end, int) {
                      for (std::int64_t item = begin; item < end; ++item) {
                        const std::int64_t r = item / outputs;
                        const std::int64_t n = item % outputs;
                        const std::int64_t expert = rows[static_cast<std::size_t>(r)].expert;
                        const double sum =
                            dot(matrix.at(expert).at(n).data, matrix.dtype, in.at(r).as<float>(), inputs);
                        const double b = bias ? bias.as<float>()[expert * outputs + n] : 0.0f;
                        out(r)[n] = static_cast<float>(sum + b);
                      }
                    });
}

/// x := round(x * weight) to `dtype`, which is what the layer's activations are made of.
void scale_rounded(float* x, std::int64_t n, float weight, DType dtype) {
  for (std::int64_t i = 0; i < n; ++i) {
    float element = 0.0f;
    cpu::store_element(x[i] * weight, dtype, 0, &element);
    x[i] = cpu::load_element(&element, dtype, 0);
  }
}

}  // namespace

void RowRunner::flush() {
  if (count_ == 0) return;
  const std::int64_t hidden = moe_.expert_width();
  const std::int64_t inner = moe_.intermediate_size;
  load_inputs();
  if (pass_ == Pass::measure_input) {
    add_to_stats(buffers_.input, hidden);
  } else {
    quantise(buffers_.input, hidden, false);
    first_product();
    activate();
    if (pass_ == Pass::measure_inner) {
      add_to_stats(buffers_.inner, inner);
    } else {
      quantise(buffers_.inner, inner, true);
      second_product();
    }
  }
  count_ = 0;
}

void RowRunner::add_to_stats(const TensorView& rows, std::int64_t width) {
  for (std::int64_t r = 0; r < count_; ++r) stats_.add(rows.at(r).as<float>(), width);
}

void RowRunner::quantise(const TensorView& rows, std::int64_t width, bool inner) const {
  const quant::ActivationQuantiser& quantiser = weights_.activations();
  if (!quantiser) return;
  for (std::int64_t r = 0; r < count_; ++r) {
    // Codes that came as codes are numbers by now.
    if (!inner && rows_[static_cast<std::size_t>(r)].scales != nullptr) continue;
    const std::int64_t expert = rows_[static_cast<std::size_t>(r)].expert;
    const float fixed = inner ? weights_.a2_scale(expert) : weights_.a1_scale(expert);
    const float of_batch = inner ? inner_scale_ : input_scale_;
    quantiser.round_trip(rows.at(r).as<float>(), width, quantiser.spans_the_batch() ? of_batch : fixed);
  }
}

void RowRunner::load_inputs() const {
  const std::int64_t hidden = moe_.expert_width();
  cpu::parallel_for(executor_, count_, kProductsWorthThreads / hidden, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      const Row& row = rows_[static_cast<std::size_t>(r)];
      float* x = buffers_.input.at(r).as<float>();
      if (row.scales != nullptr) {
        weights_.activations().decode(static_cast<const std::uint8_t*>(row.input), row.scales, row.scale_stride, hidden,
                                      x);
        continue;
      }
      cpu::load_f32(row.input, moe_.dtype, hidden, x);
      if (row.input_weight != 1.0f) scale_rounded(x, hidden, row.input_weight, moe_.dtype);
    }
  });
}

void RowRunner::first_product() const {
  product({rows_.data(), static_cast<std::size_t>(count_)}, weights_.w13(), weights_.w13_bias(), buffers_.input,
          executor_, [&](std::int64_t r) { return buffers_.product.at(r).as<float>(); });
}

void RowRunner::activate() const {
  for (std::int64_t r = 0; r < count_; ++r)
    activate_row(activation_, moe_.w13_layout, buffers_.product.at(r).as<float>(), buffers_.inner.at(r).as<float>(),
                 moe_.intermediate_size);
}

void RowRunner::second_product() const {
  product({rows_.data(), static_cast<std::size_t>(count_)}, weights_.w2(), weights_.w2_bias(), buffers_.inner,
          executor_, [&](std::int64_t r) { return rows_[static_cast<std::size_t>(r)].output; });
}

void take_row_workspaces(Arena& arena, const MoeConfig& moe, std::int64_t num_rows, ExpertsBuffers& buffers) {
  const std::int64_t rows = rows_in_wave(num_rows);
  buffers.workspace13 = arena.take(DType::f32, {rows, w13_rows(is_gated(moe.activation), moe.intermediate_size)});
  buffers.workspace2 = arena.take(DType::f32, {rows, moe.intermediate_size});
}

std::int64_t input_bytes(const MoeConfig& moe, std::int64_t num_rows) {
  return bytes_of(DType::f32, rows_in_wave(num_rows) * moe.expert_width());
}

RowBuffers row_buffers(const ExpertsBuffers& buffers, const MoeConfig& moe, void* input) {
  const std::int64_t rows = buffers.workspace13.size(0);
  return {buffers.workspace13, buffers.workspace2, TensorView(input, DType::f32, {rows, moe.expert_width()})};
}

}  // namespace conclave::experts::reference
