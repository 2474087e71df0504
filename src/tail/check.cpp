// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The rules of check.hpp.
#include "tail/check.hpp"

#include <cmath>

#include "base/error.hpp"
#include "base/tensor_format.hpp"

namespace conclave::tail {
namespace {

void check_permuted(const UnfinalizedMoeOutput& open, std::int64_t hidden_size) {
  const ConstTensorView& rows = open.gemm2_permuted;
  const ConstTensorView& weights = open.expert_weights;
  const ConstTensorView& map = open.expanded_idx_to_permuted_idx;
  require(map.rank == 2 && map.dtype == DType::i32, "permute map: given {}, expected i32 [num_tokens, top_k]", map);
  require(rows.rank == 2, "gemm2_permuted: given {}, expected [rows, {}]", rows, hidden_size);
  check_floats("gemm2_permuted", rows, rows.size(0), hidden_size);
  // Consumers on every back end index it by row number alone.
  require(rows.size(0) <= 1 || rows.stride(0) == hidden_size,
          "gemm2_permuted: given {} with row stride {}, expected densely packed rows of {}", rows, rows.stride(0),
          hidden_size);
  require(weights.rank == 2 && weights.size(0) == map.size(0) && weights.size(1) == map.size(1),
          "expert_weights: given {}, expected the shape of the permute map {}", weights, map);
  require(is_compute_dtype(weights.dtype), "expert_weights: given dtype {}, expected f32, bf16 or f16",
          name_of(weights.dtype));
  require(map.numel() == 0 || (map.data != nullptr && weights.data != nullptr),
          "permute map {} and expert_weights {}: given null data", map, weights);
}

void check_quantised(const TailConfig& config, const TailInput& input, const TailOutput& output, std::int64_t m) {
  const Support support = supports_tail_quant(config.quant);
  if (!support) fail(ErrorKind::invalid_argument, "tail: {}", support.reason());
  require(output.quantised.has_value() == (config.quant != QuantKey::none),
          "tail: quantisation {} and {} quantised output, expected both or neither", name_of(config.quant),
          output.quantised ? "a" : "no");
  if (!output.quantised) return;
  const TensorView& q = *output.quantised;
  require(q.dtype == DType::fp8_e4m3 && q.rank == 2 && q.size(0) == m && q.size(1) == input.norm_weight.size(0),
          "quantised: given {}, expected fp8_e4m3 [{}, {}]", q, m, input.norm_weight.size(0));
  require(q.size(1) <= 1 || q.stride(1) == 1, "quantised: given {}, expected contiguous columns", q);
  if (config.quant == QuantKey::fp8_token) {
    require(output.token_scales && output.token_scales->dtype == DType::f32 && output.token_scales->rank == 1 &&
                output.token_scales->size(0) == m,
            "token_scales: given {}, expected f32 [{}]", output.token_scales.value_or(TensorView{}), m);
  } else {
    require(input.static_scale && input.static_scale->dtype == DType::f32 && input.static_scale->numel() == 1,
            "static_scale: given {}, expected f32 [1]", input.static_scale.value_or(ConstTensorView{}));
    if (input.static_scale->device.type != DeviceType::cpu) return;  // Only the GPU sees it.
    const float scale = *input.static_scale->as<float>();
    require(std::isfinite(scale) && scale > 0, "static_scale: given {}, expected a positive number", scale);
  }
}

}  // namespace

void check_floats(const char* what, const ConstTensorView& view, std::int64_t rows, std::int64_t cols) {
  require(view.rank == 2 && view.size(0) == rows && view.size(1) == cols, "{}: given {}, expected [{}, {}]", what, view,
          rows, cols);
  require(is_compute_dtype(view.dtype), "{}: given dtype {}, expected f32, bf16 or f16", what, name_of(view.dtype));
  require(view.size(1) <= 1 || view.stride(1) == 1, "{}: given {}, expected contiguous columns", what, view);
  require(view.data != nullptr || view.numel() == 0, "{}: given {} with null data", what, view);
}

std::int64_t check_open(const MoeOutput& moe, std::int64_t hidden_size) {
  require(moe.routed.has_value() != moe.unfinalized.has_value(),
          "moe output: given {} routed and {} unfinalized, expected exactly one", moe.routed ? "a" : "no",
          moe.unfinalized ? "an" : "no");
  require(std::isfinite(moe.routed_scaling_factor), "routed_scaling_factor: given {}, expected a finite number",
          moe.routed_scaling_factor);
  std::int64_t num_tokens = 0;
  if (moe.unfinalized) {
    check_permuted(*moe.unfinalized, hidden_size);
    num_tokens = moe.unfinalized->expanded_idx_to_permuted_idx.size(0);
  } else {
    require(moe.routed->rank == 2, "routed: given {}, expected [num_tokens, {}]", *moe.routed, hidden_size);
    num_tokens = moe.routed->size(0);
    check_floats("routed", *moe.routed, num_tokens, hidden_size);
  }
  if (moe.shared_output) check_floats("shared_output", *moe.shared_output, num_tokens, hidden_size);
  return num_tokens;
}

void check_tail(const TailConfig& config, const TailInput& input, const TailOutput& output, std::int64_t num_tokens) {
  const ConstTensorView& weight = input.norm_weight;
  const std::int64_t hidden_size = weight.size(0);
  require(is_compute_dtype(weight.dtype) && weight.data != nullptr,
          "norm_weight: given {}, expected f32, bf16 or f16 [hidden_size]", weight);
  require(config.epsilon >= 0, "tail: given epsilon {}, expected at least 0", config.epsilon);
  if (input.residual) check_floats("residual", *input.residual, num_tokens, hidden_size);
  require(output.residual_out || output.normed || output.quantised, "tail: nothing to write, expected an output");
  if (output.residual_out) check_floats("residual_out", *output.residual_out, num_tokens, hidden_size);
  if (output.normed) check_floats("normed", *output.normed, num_tokens, hidden_size);
  check_quantised(config, input, output, num_tokens);
}

void check_place(const char* what, const ConstTensorView& view, Stream stream) {
  require(view.device == stream.device || view.numel() == 0, "{}: given memory of {}, expected {}, the stream's device",
          what, view.device, stream.device);
}

void check_places(const MoeOutput& moe, Stream stream) {
  if (moe.routed) check_place("routed", *moe.routed, stream);
  if (moe.unfinalized) {
    check_place("gemm2_permuted", moe.unfinalized->gemm2_permuted, stream);
    check_place("expert_weights", moe.unfinalized->expert_weights, stream);
    check_place("permute map", moe.unfinalized->expanded_idx_to_permuted_idx, stream);
  }
  if (moe.shared_output) check_place("shared_output", *moe.shared_output, stream);
}

void check_places(const TailInput& input, const TailOutput& output, Stream stream) {
  check_places(input.moe, stream);
  check_place("norm_weight", input.norm_weight, stream);
  if (input.residual) check_place("residual", *input.residual, stream);
  if (input.static_scale) check_place("static_scale", *input.static_scale, stream);
  if (output.residual_out) check_place("residual_out", *output.residual_out, stream);
  if (output.normed) check_place("normed", *output.normed, stream);
  if (output.quantised) check_place("quantised", *output.quantised, stream);
  if (output.token_scales) check_place("token_scales", *output.token_scales, stream);
}

Support supports_tail_quant(QuantKey quant) {
  if (quant == QuantKey::none || quant == QuantKey::fp8_token || quant == QuantKey::fp8_tensor) return Support::yes();
  return Support::no(fmt::format("quantised output {}, the tail writes none, fp8_token or fp8_tensor", name_of(quant)));
}

}  // namespace conclave::tail
