// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a row of the grid, a dtype and a seed. Out: a problem with every tensor that a kernel can ask for.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "conclave/config.hpp"
#include "conclave/router.hpp"
#include "conclave/weights.hpp"
#include "verify/grid.hpp"

namespace conclave::verify_detail {

/// A tensor that owns its memory and may be a slice of it.
struct Slab {
  Tensor memory;
  TensorView view;

  Slab() = default;
  explicit Slab(const Tensor& dense) : memory(dense), view(memory.view()) {}
  /// The first columns of a wider tensor, `padding` columns more, that is all NaN.
  Slab(DType dtype, std::initializer_list<std::int64_t> shape, std::int64_t padding);
  /// The same shape and strides in memory of its own.
  Slab copy() const;
};

struct ProblemData {
  Problem problem;
  std::string label;  ///< "silu gate_up bias f32 E8 k2 H40 I24 M37"
  Picks picks = Picks::distinct;
  bool strided = false;

  Slab hidden_states;                   ///< [M, H]
  Slab topk_ids, topk_weights;          ///< i32 and f32 [M, k]
  Slab logits;                          ///< [M, E]
  std::optional<Slab> correction_bias;  ///< f32 [E]
  std::optional<Slab> expert_map;       ///< i32 [E]
  Slab w13, w2;                         ///< [E_local, 2I | I, H], [E_local, H, I]
  std::optional<Slab> w13_bias, w2_bias;
  std::map<std::string, Slab> scales;  ///< What else ExpertWeights holds, by its name there: scales and zero points.

  std::int64_t num_tokens() const noexcept { return hidden_states.view.size(0); }
  ExpertWeights weights() const;
  /// What routers take, for rows [first, first + count).
  RouterInput router_input(std::int64_t first, std::int64_t count) const;
  std::optional<ConstTensorView> map_view() const;
  /// Shares nothing with this one.
  ProblemData copy() const;
};

/// Replaces the plain weights by weights under row.quant, made by the library's own encoder.
void quantise_problem(const GridRow& row, ProblemData& data);

ProblemData make_problem(const GridRow& row, DType dtype, const DeviceFacts& device, std::uint64_t seed);

/// Relative error that a result in `dtype` may have: 1e-5 for f32, 6e-3 for bf16 and f16. Two bits of headroom over
/// what rounding the output and the value between the two products costs; a wrong formula costs 1e-2 and more.
double tolerance_of(DType dtype) noexcept;
/// The same for a problem: quantised weights change nothing, because both sides see the same codes. Quantised
/// activations do: an element between two codes may go the other way in f32 than in f64.
double tolerance_of(const Problem& problem) noexcept;

}  // namespace conclave::verify_detail
