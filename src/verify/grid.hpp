// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The problems that every combination is tried on, as a table of plain rows. grid.cpp has the rows; problem.hpp makes
// tensors of one.
#pragma once

#include <cstdint>
#include <span>

#include "conclave/activation.hpp"
#include "conclave/dtype.hpp"
#include "conclave/quant.hpp"
#include "conclave/routing.hpp"

namespace conclave::verify_detail {

/// The dtypes that every combination computes in.
inline constexpr DType kUnquantised[] = {DType::f32, DType::bf16, DType::f16};

/// What is special about the ids and weights that modular kernels get.
enum class Picks : std::uint8_t {
  distinct,      ///< k distinct experts for each token, weights that sum to 1
  holes,         ///< some slots -1, and whole tokens without any expert
  duplicates,    ///< tokens that name one expert twice
  hot,           ///< nine of ten picks are one expert; most experts get nothing
  zero_weights,  ///< some weights 0, and one expert whose weights are NaN is picked with weight 0 only
  out_of_range,  ///< ids E, 1000000, -7: empty slots unless checked
  all_empty,     ///< every slot -1
};

/// Which biases the weights have.
enum class Bias : std::uint8_t { none, both, w13, w2 };

/// Where rows lie.
enum class Memory : std::uint8_t {
  dense,
  strided,  ///< hidden states, output and weights are slices of larger tensors; the gaps hold NaN
};

struct Shape {
  std::int64_t num_experts, top_k, hidden_size, intermediate_size, num_tokens;
};

struct GridRow {
  Shape shape{};
  Activation activation = Activation::silu;
  W13Layout layout = W13Layout::gate_up;
  Bias bias = Bias::none;
  Picks picks = Picks::distinct;
  RoutingMethod routing = RoutingMethod::renormalize;  ///< For monolithic kernels.
  ActivationParams params{};
  std::int64_t num_ranks = 1, rank = 0;  ///< More than one rank: an expert map with remote experts.
  bool weight_on_input = false;
  Memory memory = Memory::dense;
  bool mixed_dtypes = false;  ///< Weights in another type than the activations.
  bool quick = false;         ///< In the quick grid too.
  QuantConfig quant{};
  bool split_gate_up = false;  ///< Tensor-wide scales of w13 are two, gate and up.
};

/// Unquantised rows.
std::span<const GridRow> problem_grid() noexcept;
std::span<const GridRow> quantised_grid() noexcept;

/// The types of activations that a row is tried with; `index` is its place in its grid.
std::span<const DType> dtypes_of(const GridRow& row, std::size_t index) noexcept;

}  // namespace conclave::verify_detail
