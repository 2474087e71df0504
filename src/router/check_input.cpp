// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the arguments of route(). Out: nothing, or an Error.
#include "router/check_input.hpp"

#include "base/error.hpp"
#include "base/tensor_format.hpp"

namespace conclave::router {
namespace {

void check_matrix(const char* what, const ConstTensorView& view, std::int64_t rows, std::int64_t cols) {
  require(view.rank == 2 && view.size(0) == rows && view.size(1) == cols, "router: {}: given {}, expected [{}, {}]",
          what, view, rows, cols);
  require(cols <= 1 || view.stride(1) == 1, "router: {}: given {}, expected contiguous columns", what, view);
}

void check_out(const Rule& rule, const Routing& out, std::int64_t rows) {
  check_matrix("topk_ids", out.topk_ids, rows, rule.num_slots);
  check_matrix("topk_weights", out.topk_weights, rows, rule.num_slots);
  require(out.topk_ids.dtype == DType::i32, "router: topk_ids: given {}, expected i32", out.topk_ids);
  require(out.topk_weights.dtype == DType::f32, "router: topk_weights: given {}, expected f32", out.topk_weights);
}

void check_bias(const Rule& rule, const std::optional<ConstTensorView>& bias) {
  require(bias.has_value() == rule.routing.has_bias, "router: e_score_correction_bias: {}, but has_bias is {}",
          bias ? "given" : "missing", rule.routing.has_bias);
  if (!bias) return;
  const bool fits = bias->rank == 1 && bias->size(0) == rule.num_experts && bias->dtype == DType::f32;
  require(fits && (bias->size(0) <= 1 || bias->stride(0) == 1),
          "router: e_score_correction_bias: given {}, expected contiguous f32[{}]", *bias, rule.num_experts);
}

void check_hash(const Rule& rule, const RouterInput& input, std::int64_t rows) {
  require(input.hash_table.has_value() == rule.routing.hash_table,
          "router: hash_table: {}, but routing.hash_table is {}", input.hash_table ? "given" : "missing",
          rule.routing.hash_table);
  if (!rule.routing.hash_table) return;
  require(input.hash_table->dtype == DType::i32, "router: hash_table: given {}, expected i32", *input.hash_table);
  require(input.hash_table->rank == 2, "router: hash_table: given {}, expected [vocabulary, {}]", *input.hash_table,
          rule.top_k);
  check_matrix("hash_table", *input.hash_table, input.hash_table->size(0), rule.top_k);
  require(input.token_ids.has_value(), "router: token_ids: missing, but routing.hash_table needs them");
  const ConstTensorView& tokens = *input.token_ids;
  const bool integers = tokens.dtype == DType::i32 || tokens.dtype == DType::i64;
  require(integers && tokens.rank == 1 && tokens.size(0) == rows,
          "router: token_ids: given {}, expected i32[{}] or i64", tokens, rows);
}

void check_device(const char* what, const ConstTensorView& view, Device device) {
  require(view.device == device, "router: {}: given {}, expected it on {}", what, view, device);
}

void check_devices(const RouterInput& input, const Routing& out, Device device) {
  check_device("topk_ids", out.topk_ids, device);
  check_device("topk_weights", out.topk_weights, device);
  if (input.logits.rank != 0) check_device("logits", input.logits, device);
  if (input.e_score_correction_bias) check_device("e_score_correction_bias", *input.e_score_correction_bias, device);
  if (input.hash_table) check_device("hash_table", *input.hash_table, device);
  if (input.token_ids) check_device("token_ids", *input.token_ids, device);
}

}  // namespace

void check_input(const Rule& rule, const RouterInput& input, const Routing& out, const Stream& stream,
                 DeviceType device) {
  require(stream.device.type == device && (device != DeviceType::cpu || stream.executor != nullptr),
          "router: stream: given device {} and executor {}, expected {}", stream.device,
          stream.executor == nullptr ? "null" : "set", device == DeviceType::cpu ? "cpu and an executor" : "cuda");
  check_devices(input, out, stream.device);
  require(out.topk_ids.rank == 2, "router: topk_ids: given {}, expected [M, {}]", out.topk_ids, rule.num_slots);
  const std::int64_t rows = out.topk_ids.size(0);
  check_out(rule, out, rows);
  const RoutingMethod method = rule.routing.method;
  // Simulated routing reads no logits, and a custom function need not.
  const bool needs_logits = method != RoutingMethod::simulated && method != RoutingMethod::custom;
  if (needs_logits || input.logits.rank != 0) {
    check_matrix("logits", input.logits, rows, rule.num_experts);
    require(is_compute_dtype(input.logits.dtype), "router: logits: given {}, expected f32, bf16 or f16", input.logits);
  }
  check_bias(rule, input.e_score_correction_bias);
  check_hash(rule, input, rows);
  const bool is_custom = method == RoutingMethod::custom;
  const bool has_custom = input.custom != nullptr && static_cast<bool>(*input.custom);
  require(is_custom == has_custom, "router: custom: {} for method {}", has_custom ? "given" : "missing",
          name_of(method));
}

}  // namespace conclave::router
