// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: strided expert weights. Out: contiguous ones, copied expert by expert so that a caller who gives the source up
// never holds much more than one copy.
#include "experts/plain_weights.hpp"

#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "cpu/float_convert.hpp"
#include "experts/weights_check.hpp"

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

void copy_bias(const ConstTensorView& from, const TensorView& to) {
  for (std::int64_t e = 0; e < from.size(0); ++e) cpu::load_row_f32(from.at(e), to.at(e).as<float>());
}

Tensor like(const ConstTensorView& view, DType dtype) {
  return Tensor(dtype, std::span<const std::int64_t>(view.shape.data(), static_cast<std::size_t>(view.rank)));
}

}  // namespace

PlainWeights::PlainWeights(std::string layout, const Problem& problem, const ExpertWeights& weights)
    : layout_(std::move(layout)) {
  check_weights(problem, weights);
  w13_ = like(weights.w13, weights.w13.dtype);
  w2_ = like(weights.w2, weights.w2.dtype);
  if (weights.w13_bias) w13_bias_ = like(*weights.w13_bias, DType::f32);
  if (adds_w2_bias(problem)) w2_bias_ = like(*weights.w2_bias, DType::f32);
  assign(problem, weights);
}

void PlainWeights::assign(const Problem& problem, const ExpertWeights& weights) {
  check_weights(problem, weights);
  require(weights.num_local_experts() == num_local_experts(), "w13: given {} local experts, expected {} as packed",
          weights.num_local_experts(), num_local_experts());
  copy_matrices(weights.w13, w13_, weights.give_up);
  copy_matrices(weights.w2, w2_, weights.give_up);
  if (w13_bias_) copy_bias(*weights.w13_bias, w13_bias_);
  if (w2_bias_) copy_bias(*weights.w2_bias, w2_bias_);
}

std::int64_t PlainWeights::bytes() const noexcept {
  std::int64_t sum = w13_.view().bytes() + w2_.view().bytes();
  if (w13_bias_) sum += w13_bias_.view().bytes();
  if (w2_bias_) sum += w2_bias_.view().bytes();
  return sum;
}

}  // namespace conclave::experts
