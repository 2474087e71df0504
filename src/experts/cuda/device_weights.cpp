// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// device_weights.hpp: one expert's matrix at a time goes to the device (where it is not there yet) and through
// pack_rows.
#include "experts/cuda/device_weights.hpp"

#include "base/error.hpp"
#include "base/round_up.hpp"
#include "conclave/device.hpp"
#include "cuda/current_device.hpp"
#include "experts/activation.hpp"
#include "experts/cuda/pack_rows.hpp"
#include "experts/weights_check.hpp"

namespace conclave::experts::cuda {
namespace {

cudaStream_t native(Stream stream) {
  return static_cast<cudaStream_t>(stream.native);
}

/// `matrix` on the stream's GPU: itself, or a copy in `staging`.
ConstTensorView on_device(const ConstTensorView& matrix, const Tensor& staging, Stream stream) {
  if (matrix.device == stream.device) return matrix;
  copy(matrix, staging, stream);
  return staging;
}

Tensor staging_for(const ConstTensorView& source, std::int64_t rows, std::int64_t columns, Stream stream) {
  if (source.device == stream.device) return {};
  return Tensor(source.dtype, {rows, columns}, stream.device);
}

}  // namespace

DeviceWeights::DeviceWeights(std::string part, const DeviceLayout& layout, const Problem& problem,
                             const ExpertWeights& weights, Stream stream)
    : part_(std::move(part)), layout_(layout) {
  check_weights(problem, weights);
  const MoeConfig& c = problem.moe;
  const std::int64_t count = weights.num_local_experts();
  num_experts_ = count;
  hidden_ = round_up(c.expert_width(), layout.alignment);
  inner_ = round_up(c.intermediate_size, layout.alignment);
  w13_rows_ = conclave::w13_rows(is_gated(c.activation), inner_);
  w13_ = Tensor(layout.dtype, {count, w13_rows_, hidden_}, stream.device);
  w2_ = Tensor(layout.dtype, {count, hidden_, inner_}, stream.device);
  if (c.has_w13_bias) w13_bias_ = Tensor(DType::f32, {count, w13_rows_}, stream.device);
  if (adds_w2_bias(problem)) w2_bias_ = Tensor(DType::f32, {count, hidden_}, stream.device);
  assign(problem, weights, stream);
}

void DeviceWeights::assign(const Problem& problem, const ExpertWeights& weights, Stream stream) {
  check_weights(problem, weights);
  require(weights.num_local_experts() == num_experts_, "{}: given weights of {} experts, packed {}", part_,
          weights.num_local_experts(), num_experts_);
  const conclave::cuda::CurrentDevice current(stream.device);
  const MoeConfig& c = problem.moe;
  const bool gated = is_gated(c.activation);
  pack_matrix(weights.w13, w13_, gated, c.w13_layout, weights, stream);
  pack_matrix(weights.w2, w2_, false, c.w13_layout, weights, stream);
  if (w13_bias_) pack_bias(*weights.w13_bias, w13_bias_, gated, c.w13_layout, stream);
  if (w2_bias_) pack_bias(*weights.w2_bias, w2_bias_, false, c.w13_layout, stream);
  // The source may go away when this returns.
  synchronize(stream);
}

void DeviceWeights::pack_matrix(const ConstTensorView& source, const Tensor& packed, bool gated, W13Layout order,
                                const ExpertWeights& weights, Stream stream) {
  if (num_experts_ == 0) return;
  const std::int64_t rows = source.size(1);
  const std::int64_t columns = source.size(2);
  const bool interleaved = gated && layout_.interleaved;
  const Tensor staging = staging_for(source, rows, columns, stream);
  for (std::int64_t e = 0; e < num_experts_; ++e) {
    const ConstTensorView matrix = source.at(e);
    const ConstTensorView from = on_device(matrix, staging, stream);
    const TensorView to = packed.view().at(e);
    pack_rows({.from = from.data,
               .from_dtype = from.dtype,
               .from_stride = from.stride(0),
               .to = to.data,
               .to_dtype = to.dtype,
               .rows = to.size(0),
               .columns = to.size(1),
               .from_rows = interleaved ? rows / 2 : rows,
               .from_columns = columns,
               .gated = interleaved,
               .layout = order},
              native(stream));
    if (weights.give_up && source.device != stream.device && matrix.is_contiguous())
      weights.give_up(matrix.data, matrix.bytes());
  }
}

void DeviceWeights::pack_bias(const ConstTensorView& source, const Tensor& packed, bool gated, W13Layout order,
                              Stream stream) {
  if (num_experts_ == 0) return;
  const std::int64_t rows = source.size(1);
  const bool interleaved = gated && layout_.interleaved;
  const Tensor staging = staging_for(source, rows, 1, stream);
  for (std::int64_t e = 0; e < num_experts_; ++e) {
    // One column, so that a row of the packer is an element.
    ConstTensorView column = source.at(e);
    column.rank = 2;
    column.shape = {rows, 1};
    column.strides = {source.stride(1), 1};
    const ConstTensorView from = on_device(column, staging, stream);
    pack_rows({.from = from.data,
               .from_dtype = from.dtype,
               .from_stride = from.stride(0),
               .to = packed.view().at(e).data,
               .to_dtype = DType::f32,
               .rows = packed.view().size(1),
               .columns = 1,
               .from_rows = interleaved ? rows / 2 : rows,
               .from_columns = 1,
               .gated = interleaved,
               .layout = order},
              native(stream));
  }
}

std::int64_t DeviceWeights::bytes() const noexcept {
  std::int64_t sum = 0;
  for (const Tensor* tensor : {&w13_, &w2_, &w13_bias_, &w2_bias_})
    if (*tensor) sum += tensor->view().bytes();
  return sum;
}

}  // namespace conclave::experts::cuda
