// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The checks of layer_weights.hpp.
#include "kernel/layer_weights.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/tensor_format.hpp"

namespace conclave {
namespace {

using Optional = std::optional<ConstTensorView>;

void check(const char* name, const Optional& given, bool wanted, std::initializer_list<std::int64_t> shape,
           const char* why) {
  require(given.has_value() == wanted, "{}: {}, but the configuration {} it ({})", name,
          given.has_value() ? "given" : "missing", wanted ? "needs" : "does not have", why);
  if (!given.has_value()) return;
  const ConstTensorView expected(nullptr, given->dtype, shape);
  // Entries beyond the rank mean nothing: a view of one row keeps what its matrix had there.
  const bool same = given->rank == expected.rank && std::equal(shape.begin(), shape.end(), given->shape.begin());
  require(is_compute_dtype(given->dtype) && same, "{}: given {}, expected f32, bf16 or f16 of shape {}", name, *given,
          expected);
  require(given->rank == 0 || given->stride(-1) == 1, "{}: given {}, expected contiguous columns", name, *given);
}

/// Tensors that a caller may leave out because it brings logits or ids instead.
void check_optional(const char* name, const Optional& given, std::initializer_list<std::int64_t> shape) {
  if (given.has_value()) check(name, given, true, shape, "router");
}

ConstTensorView with_leading_one(const ConstTensorView& matrix) {
  ConstTensorView v = matrix;
  v.rank = 3;
  v.shape = {1, matrix.size(0), matrix.size(1)};
  v.strides = {matrix.size(0) * matrix.stride(0), matrix.stride(0), matrix.stride(1)};
  return v;
}

}  // namespace

void check_layer_weights(const MoeConfig& c, const LayerWeights& w) {
  check_optional("router_weight", w.router_weight, {c.num_experts, c.hidden_size});
  check_optional("router_bias", w.router_bias, {c.num_experts});
  require(!w.router_bias.has_value() || w.router_weight.has_value(),
          "router_bias: given without a router_weight, expected both");
  if (w.e_score_correction_bias.has_value() || w.router_weight.has_value())
    check("e_score_correction_bias", w.e_score_correction_bias, c.routing.has_bias, {c.num_experts},
          "routing.has_bias");
  require(w.hash_table.has_value() <= c.routing.hash_table,
          "hash_table: given, but the configuration does not have it (routing.hash_table)");
  const bool shared = c.shared.intermediate_size > 0;
  check("shared_w13", w.shared_w13, shared,
        {w13_rows(is_gated(c.activation), c.shared.intermediate_size), c.hidden_size}, "shared.intermediate_size");
  check("shared_w2", w.shared_w2, shared, {c.hidden_size, c.shared.intermediate_size}, "shared.intermediate_size");
  check("shared_gate", w.shared_gate, c.shared.sigmoid_gate, {c.hidden_size}, "shared.sigmoid_gate");
  const bool latent = c.latent_size > 0;
  check("latent_in", w.latent_in, latent, {c.latent_size, c.hidden_size}, "latent_size");
  check("latent_out", w.latent_out, latent, {c.hidden_size, c.latent_size}, "latent_size");
}

ExpertWeights shared_as_experts(const LayerWeights& weights) {
  ExpertWeights e;
  e.w13 = with_leading_one(*weights.shared_w13);
  e.w2 = with_leading_one(*weights.shared_w2);
  return e;
}

}  // namespace conclave
