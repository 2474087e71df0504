// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The steps of layer_steps.hpp, row by row over the executor's threads.
#include "kernel/layer_steps.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "cpu/dense.hpp"
#include "cpu/float_convert.hpp"
#include "cpu/parallel_for.hpp"
#include "cuda/dense.hpp"
#include "kernel/cuda/steps.hpp"

namespace conclave {
namespace {

/// Columns that one pass of the epilogue keeps in f32 on the stack: 4 KiB for each operand stays in L1.
constexpr std::int64_t kColumns = 1024;
/// Rows for each grab of the shared counter; a row of a real model is a few KiB, far more than the atomic costs.
constexpr std::int64_t kRows = 4;

template <class F>
void for_each_row(Stream stream, std::int64_t num_rows, F&& f) {
  cpu::parallel_for(*stream.executor, num_rows, kRows, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t m = begin; m < end; ++m) f(m);
  });
}

using Buffer = std::array<float, kColumns>;

/// A vector as a matrix of one row.
ConstTensorView as_row(const ConstTensorView& vector) {
  ConstTensorView row = vector;
  row.rank = 2;
  row.shape = {1, vector.size(0)};
  row.strides = {vector.size(0), vector.stride(0)};
  return row;
}

void add_scaled(Buffer& sum, const ConstTensorView& row, float scale, std::int64_t count) {
  Buffer term;
  cpu::load_row_f32(row, term.data());
  for (std::int64_t i = 0; i < count; ++i)
    sum[static_cast<std::size_t>(i)] += scale * term[static_cast<std::size_t>(i)];
}

void epilogue_columns(const EpilogueInput& in, const TensorView& output, std::int64_t m, std::int64_t at,
                      std::int64_t count) {
  Buffer sum;
  cpu::load_row_f32(in.routed.at(m).narrow(0, at, count), sum.data());
  const auto scale = static_cast<float>(in.routed_scale);
  if (scale != 1.0F) std::for_each(sum.begin(), sum.begin() + count, [&](float& x) { x *= scale; });
  if (in.zero_weight) {
    // A token that chose no zero expert skips the term, so that an infinite input cannot become NaN.
    const float weight = in.zero_weight->as<float>()[m];
    if (weight != 0.0F) add_scaled(sum, in.hidden_states.at(m).narrow(0, at, count), weight, count);
  }
  if (in.shared) add_scaled(sum, in.shared->at(m).narrow(0, at, count), 1.0F, count);
  cpu::store_row_f32(sum.data(), output.at(m).narrow(0, at, count));
}

}  // namespace

void split_zero_experts(const Routing& routing, std::int64_t first_zero_id, const Routing& experts,
                        const TensorView& zero_weight, Stream stream) {
  if (stream.device.type == DeviceType::cuda)
    return on_cuda::split_zero_experts(routing, first_zero_id, experts, zero_weight, stream);
  const std::int64_t slots = routing.topk_ids.size(1);
  for_each_row(stream, routing.topk_ids.size(0), [&](std::int64_t m) {
    float sum = 0;
    for (std::int64_t slot = 0; slot < slots; ++slot) {
      const std::int32_t id = routing.topk_ids.at(m).as<std::int32_t>()[slot];
      const float weight = routing.topk_weights.at(m).as<float>()[slot];
      const bool zero = id >= first_zero_id;
      if (zero) sum += weight;
      experts.topk_ids.at(m).as<std::int32_t>()[slot] = zero ? -1 : id;
      experts.topk_weights.at(m).as<float>()[slot] = zero ? 0.0F : weight;
    }
    zero_weight.as<float>()[m] = sum;
  });
}

void project(const ConstTensorView& a, const ConstTensorView& w, const TensorView& f32, const TensorView& out,
             Stream stream) {
  if (stream.device.type == DeviceType::cuda) return cuda::dense(a, w, std::nullopt, out, stream);
  const TensorView sums(f32.data, DType::f32, {a.size(0), w.size(0)});
  cpu::dense(a, w, std::nullopt, sums, *stream.executor);
  if (out.data == sums.data) return;  // f32 wanted: it is there already
  for_each_row(stream, a.size(0), [&](std::int64_t m) { cpu::store_row_f32(sums.at(m).as<float>(), out.at(m)); });
}

void route_shared(const ConstTensorView& hidden_states, const std::optional<ConstTensorView>& gate,
                  const Routing& routing, Stream stream) {
  const std::int64_t num_tokens = hidden_states.size(0);
  const bool on_host = stream.device.type == DeviceType::cpu;
  if (!on_host && !gate) return on_cuda::finish_shared_routing(routing, false, stream);
  if (!on_host) {
    cuda::dense(hidden_states, as_row(*gate), std::nullopt,
                TensorView(routing.topk_weights.data, DType::f32, {num_tokens, 1}, stream.device), stream);
    return on_cuda::finish_shared_routing(routing, true, stream);
  }
  std::fill_n(routing.topk_ids.as<std::int32_t>(), num_tokens, 0);
  float* weights = routing.topk_weights.as<float>();
  if (!gate) {
    std::fill_n(weights, num_tokens, 1.0F);
    return;
  }
  cpu::dense(hidden_states, as_row(*gate), std::nullopt, TensorView(weights, DType::f32, {num_tokens, 1}),
             *stream.executor);
  for (std::int64_t m = 0; m < num_tokens; ++m) weights[m] = 1.0F / (1.0F + std::exp(-weights[m]));
}

void epilogue(const EpilogueInput& input, const TensorView& output, Stream stream) {
  if (stream.device.type == DeviceType::cuda) return on_cuda::epilogue(input, output, stream);
  const std::int64_t width = output.size(1);
  for_each_row(stream, output.size(0), [&](std::int64_t m) {
    for (std::int64_t at = 0; at < width; at += kColumns)
      epilogue_columns(input, output, m, at, std::min(kColumns, width - at));
  });
}

}  // namespace conclave
