// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: strided or quantised expert weights. Out: contiguous ones, copied or decoded expert by expert so that a caller
// who gives the source up never holds much more than one copy.
#include "experts/plain_weights.hpp"

#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "cpu/float_convert.hpp"
#include "experts/weights_check.hpp"
#include "quant/expert_matrices.hpp"
#include "quant/matrix.hpp"

namespace conclave::experts {
namespace {

using GiveUp = std::function<void(const void*, std::int64_t)>;

void copy_block(const ConstTensorView& from, const TensorView& to, const GiveUp& give_up) {
  std::memcpy(to.data, from.data, static_cast<std::size_t>(from.bytes()));
  if (give_up) give_up(from.data, from.bytes());
}

/// [E, rows, columns]: a whole expert at once where its rows are adjacent. Larger blocks give up more whole pages.
void copy_matrices(const ConstTensorView& from, const TensorView& to, const GiveUp& give_up) {
  if (from.numel() == 0) return;
  for (std::int64_t e = 0; e < from.size(0); ++e) {
    if (from.at(e).is_contiguous()) {
      copy_block(from.at(e), to.at(e), give_up);
    } else {
      for (std::int64_t row = 0; row < from.size(1); ++row) copy_block(from.at(e).at(row), to.at(e).at(row), give_up);
    }
  }
}

/// One expert's matrix as f32 [rows, columns].
void decode(const quant::ExpertMatrices& matrices, const TensorView& to) {
  for (const quant::ExpertMatrix& part : matrices) {
    const quant::Format format = quant::format_of(part.matrix.key, part.matrix.role);
    for (std::int64_t row = 0; row < part.matrix.rows; ++row)
      quant::dequantise_row(format, part.matrix, row, to.at(part.first_row + row * part.row_step).as<float>());
  }
}

void give_up_expert(const ConstTensorView& elements, std::int64_t expert, const GiveUp& give_up) {
  const ConstTensorView of_expert = elements.at(expert);
  if (give_up && of_expert.is_contiguous()) give_up(of_expert.data, of_expert.bytes());
}

/// One value for each expert, however many were given.
void copy_static_scales(const ConstTensorView& from, const TensorView& to) {
  for (std::int64_t e = 0; e < to.size(0); ++e)
    to.as<float>()[e] = from.as<float>()[from.numel() == 1 ? 0 : e * from.stride(0)];
}

void copy_bias(const ConstTensorView& from, const TensorView& to) {
  for (std::int64_t e = 0; e < from.size(0); ++e) cpu::load_row_f32(from.at(e), to.at(e).as<float>());
}

Tensor like(const ConstTensorView& view, DType dtype) {
  return Tensor(dtype, std::span<const std::int64_t>(view.shape.data(), static_cast<std::size_t>(view.rank)));
}

}  // namespace

PlainWeights::PlainWeights(std::string layout, const Problem& problem, const ExpertWeights& weights)
    : layout_(std::move(layout)), activations_(problem.quant.activations) {
  check_weights(problem, weights);
  const MoeConfig& moe = problem.moe;
  const std::int64_t num_local = weights.num_local_experts();
  const DType dtype = problem.quant.weights == QuantKey::none ? moe.weight_dtype : DType::f32;
  const std::int64_t rows = w13_rows(is_gated(moe.activation), moe.intermediate_size);
  w13_ = Tensor(dtype, {num_local, rows, moe.expert_width()});
  w2_ = Tensor(dtype, {num_local, moe.expert_width(), moe.intermediate_size});
  if (weights.w13_bias) w13_bias_ = like(*weights.w13_bias, DType::f32);
  if (adds_w2_bias(problem)) w2_bias_ = like(*weights.w2_bias, DType::f32);
  if (weights.a1_scale) a1_scale_ = Tensor(DType::f32, {num_local});
  if (weights.a2_scale) a2_scale_ = Tensor(DType::f32, {num_local});
  assign(problem, weights);
}

void PlainWeights::assign(const Problem& problem, const ExpertWeights& weights) {
  check_weights(problem, weights);
  require(weights.num_local_experts() == num_local_experts(), "w13: given {} local experts, expected {} as packed",
          weights.num_local_experts(), num_local_experts());
  const QuantKey key = problem.quant.weights;
  if (key == QuantKey::none) {
    copy_matrices(weights.w13, w13_, weights.give_up);
    copy_matrices(weights.w2, w2_, weights.give_up);
  }
  for (std::int64_t e = 0; key != QuantKey::none && e < num_local_experts(); ++e) {
    decode(quant::w13_matrices(problem.moe, key, weights, e), w13_.view().at(e));
    decode(quant::w2_matrices(problem.moe, key, weights, e), w2_.view().at(e));
    give_up_expert(weights.w13, e, weights.give_up);
    give_up_expert(weights.w2, e, weights.give_up);
  }
  if (a1_scale_) copy_static_scales(*weights.a1_scale, a1_scale_);
  if (a2_scale_) copy_static_scales(*weights.a2_scale, a2_scale_);
  if (w13_bias_) copy_bias(*weights.w13_bias, w13_bias_);
  if (w2_bias_) copy_bias(*weights.w2_bias, w2_bias_);
}

std::vector<TensorView> PlainWeights::expert_tensors() const {
  std::vector<TensorView> tensors;
  for (const Tensor* tensor : {&w13_, &w2_, &w13_bias_, &w2_bias_, &a1_scale_, &a2_scale_})
    if (*tensor) tensors.push_back(tensor->view());
  return tensors;
}

std::int64_t PlainWeights::bytes() const noexcept {
  std::int64_t sum = 0;
  for (const Tensor* tensor : {&w13_, &w2_, &w13_bias_, &w2_bias_, &a1_scale_, &a2_scale_})
    if (*tensor) sum += tensor->view().bytes();
  return sum;
}

}  // namespace conclave::experts
