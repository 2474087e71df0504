// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The reference arithmetic: output = w2 . act(w13 . input + b13) + b2, one row at a time, nothing rounded between but
// what quantised activations ask for: then the input and act(...) go through their codes.
// In: rows, each with its expert. Out: f32 rows. Products are summed in double, so that what a fast kernel is compared
// with has no error of its own; each element is one dot product, so its bits depend on nothing but its own row.
#pragma once

#include <array>
#include <cstdint>

#include "conclave/config.hpp"
#include "conclave/experts.hpp"
#include "experts/activation.hpp"
#include "experts/plain_weights.hpp"

namespace conclave::experts::reference {

/// Rows computed together. Enough to keep all threads busy, few enough that their buffers stay small for any M.
inline constexpr std::int64_t kWaveRows = 64;

struct Row {
  const void* input = nullptr;   ///< hidden_size elements of moe.dtype, or codes of them where there are scales.
  std::int64_t expert = 0;       ///< Local slot.
  float* output = nullptr;       ///< hidden_size values.
  const void* scales = nullptr;  ///< Of input that prepare has quantised, `scale_stride` elements apart.
  std::int64_t scale_stride = 1;
  float input_weight = 1.0f;  ///< Multiplies the input, and the product is rounded to moe.dtype: that is its type.

  /// `row`: the scales of this row's groups.
  void set_scales(const ConstTensorView& row) {
    scales = row.data;
    scale_stride = row.stride(0);
  }
};

/// Views of f32 matrices with one row for each row of a wave.
struct RowBuffers {
  TensorView product;  ///< [rows, 2I | I] after the first product
  TensorView inner;    ///< [rows, I] after the activation
  TensorView input;    ///< [rows, hidden_size] in f32
};

/// Rows in each buffer when there are `num_rows` to compute.
constexpr std::int64_t rows_in_wave(std::int64_t num_rows) {
  return num_rows < kWaveRows ? num_rows : kWaveRows;
}

/// Collects rows and computes them a wave at a time. Call measure() first, and flush() after the last row.
class RowRunner {
 public:
  RowRunner(const MoeConfig& moe, const ActivationFn& activation, const PlainWeights& weights,
            const RowBuffers& buffers, Executor& executor)
      : moe_(moe), activation_(activation), weights_(weights), buffers_(buffers), executor_(executor) {}

  void add(const Row& row) {
    rows_[static_cast<std::size_t>(count_++)] = row;
    if (count_ == kWaveRows) flush();
  }
  void flush();

  /// `add_rows()` adds every row of the call and has no other effect. Where one scale spans the batch, it is found
  /// here, over exactly these rows, by computing them up to the point where it is needed: first for the input, then for
  /// the value between the products. Else nothing happens.
  template <class F>
  void measure(F&& add_rows) {
    if (!weights_.activations().spans_the_batch()) return;
    for (const Pass pass : {Pass::measure_input, Pass::measure_inner}) {
      pass_ = pass;
      stats_ = {};
      add_rows();
      flush();
      (pass == Pass::measure_input ? input_scale_ : inner_scale_) = weights_.activations().batch_scale(stats_);
    }
    pass_ = Pass::compute;
  }

 private:
  enum class Pass : std::uint8_t { measure_input, measure_inner, compute };

  void load_inputs() const;
  void first_product() const;
  void activate() const;
  void second_product() const;
  void add_to_stats(const TensorView& rows, std::int64_t width);
  void quantise(const TensorView& rows, std::int64_t width, bool inner) const;

  const MoeConfig& moe_;
  const ActivationFn& activation_;
  const PlainWeights& weights_;
  RowBuffers buffers_;
  Executor& executor_;
  std::array<Row, kWaveRows> rows_;
  std::int64_t count_ = 0;
  Pass pass_ = Pass::compute;
  quant::GroupStats stats_;
  float input_scale_ = 1.0f, inner_scale_ = 1.0f;
};

/// Takes workspace13 and workspace2 for `num_rows` rows.
void take_row_workspaces(Arena& arena, const MoeConfig& moe, std::int64_t num_rows, ExpertsBuffers& buffers);
/// Bytes of scratch that hold RowBuffers::input.
std::int64_t input_bytes(const MoeConfig& moe, std::int64_t num_rows);
/// Workspaces as taken; the inputs at the start of `input`.
RowBuffers row_buffers(const ExpertsBuffers& buffers, const MoeConfig& moe, void* input);

}  // namespace conclave::experts::reference
