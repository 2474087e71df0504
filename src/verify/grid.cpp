// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The rows of the problem grid. Sizes are odd and all different on purpose (a swapped pair of dimensions must not go
// unnoticed), and straddle the blocks of kernels: 7 and 17 below a vector, 33 and 65 just over one, 511 below a cache
// block. Limits are near 1 because inputs are of order 1: a clamp that never bites tests nothing.
#include "verify/grid.hpp"

namespace conclave::verify_detail {
namespace {

using enum Activation;
using enum W13Layout;
using R = RoutingMethod;
using B = Bias;
using P = Picks;

// alpha, beta, limit, linear_beta.
constexpr auto kDefault = std::nullopt;
constexpr ActivationParams kLimit{kDefault, kDefault, 0.9, kDefault};
constexpr ActivationParams kOai{1.3, 0.6, 1.1, kDefault};
constexpr ActivationParams kSitu{kDefault, 1.2, kDefault, kDefault};
constexpr ActivationParams kSituLinear{kDefault, 1.2, kDefault, 0.8};

/// Rows are written as "shape, activation, layout, bias" and then whatever differs from the plain case.
struct Row : GridRow {
  constexpr Row(Shape s, Activation a, W13Layout l, Bias b) {
    shape = s;
    activation = a;
    layout = l;
    bias = b;
  }
  constexpr Row with(Picks p) const { return set(&GridRow::picks, p); }
  constexpr Row with(RoutingMethod method) const { return set(&GridRow::routing, method); }
  constexpr Row with(ActivationParams p) const { return set(&GridRow::params, p); }
  constexpr Row on_rank(std::int64_t r, std::int64_t count) const {
    return set(&GridRow::rank, r).set(&GridRow::num_ranks, count);
  }
  constexpr Row on_input() const { return set(&GridRow::weight_on_input, true); }
  constexpr Row strided() const { return set(&GridRow::memory, Memory::strided); }
  constexpr Row mixed() const { return set(&GridRow::mixed_dtypes, true); }
  constexpr Row quickly() const { return set(&GridRow::quick, true); }

 private:
  template <class T>
  constexpr Row set(T GridRow::*field, T value) const {
    Row copy = *this;
    copy.*field = value;
    return copy;
  }
};

constexpr GridRow kGrid[] = {
    // Every gated activation in every layout.
    Row({8, 2, 40, 24, 17}, silu, gate_up, B::none).quickly(),
    Row({5, 2, 33, 19, 7}, silu, up_gate, B::both).with(R::default_),
    Row({5, 3, 17, 40, 9}, silu, interleaved, B::w13).with(R::renormalize_naive),
    Row({8, 3, 41, 23, 7}, silu, gate_up, B::none).with(R::sigmoid_renorm).with(kLimit).quickly(),
    Row({5, 2, 24, 33, 17}, silu, up_gate, B::w2).with(R::sigmoid).with(kLimit),
    Row({2, 1, 40, 17, 7}, silu, interleaved, B::both).with(R::llama4).with(kLimit),
    Row({8, 2, 33, 40, 17}, gelu, gate_up, B::both),
    Row({5, 2, 23, 9, 7}, gelu, up_gate, B::none).with(R::top_k),
    Row({5, 2, 40, 31, 17}, gelu, interleaved, B::none).with(R::topk_sigmoid),
    Row({8, 2, 24, 33, 7}, gelu_tanh, gate_up, B::none),
    Row({5, 2, 65, 17, 17}, gelu_tanh, up_gate, B::both),
    Row({5, 3, 16, 48, 33}, gelu_tanh, interleaved, B::w13).with(R::deepseek_v4),
    Row({8, 2, 31, 20, 7}, relu2, gate_up, B::both),
    Row({5, 2, 20, 31, 17}, relu2, up_gate, B::none).with(R::minimax2),
    Row({5, 2, 17, 7, 7}, relu2, interleaved, B::none),
    Row({8, 2, 40, 33, 17}, swigluoai, interleaved, B::both).with(kOai).quickly(),
    Row({5, 2, 33, 24, 7}, swigluoai, gate_up, B::both),
    Row({5, 2, 17, 40, 17}, swigluoai, up_gate, B::w13).with(kOai),
    Row({8, 2, 23, 41, 7}, swigluoai_uninterleave, gate_up, B::none).with(R::deepseek_v3).with(kOai),
    Row({5, 2, 41, 23, 17}, swigluoai_uninterleave, up_gate, B::both).with(kLimit),
    Row({5, 2, 24, 17, 7}, swigluoai_uninterleave, interleaved, B::none).with(kOai),
    Row({8, 2, 33, 16, 17}, swiglustep, gate_up, B::none).with(kLimit),
    Row({5, 2, 19, 33, 7}, swiglustep, up_gate, B::both).with(kLimit),
    Row({5, 2, 40, 9, 17}, swiglustep, interleaved, B::none).with(kLimit),
    Row({8, 2, 24, 40, 7}, situ, gate_up, B::none).with(kSitu),
    Row({5, 2, 17, 33, 17}, situ, up_gate, B::both).with(kSituLinear),
    Row({5, 2, 33, 17, 7}, situ, interleaved, B::none).with(kSituLinear),
    // Activations without a gate.
    Row({8, 2, 40, 23, 17}, silu_no_mul, gate_up, B::none),
    Row({5, 2, 23, 40, 7}, silu_no_mul, gate_up, B::both).with(P::holes),
    Row({5, 2, 33, 24, 17}, gelu_no_mul, gate_up, B::both),
    Row({5, 2, 24, 33, 7}, gelu_tanh_no_mul, gate_up, B::none),
    Row({8, 2, 17, 41, 17}, relu2_no_mul, gate_up, B::both).quickly(),
    Row({5, 1, 41, 17, 7}, relu2_no_mul, gate_up, B::none).with(R::llama4).on_input(),
    // Ids and weights of every kind.
    Row({8, 2, 40, 17, 33}, silu, gate_up, B::both).with(P::holes).quickly(),
    Row({5, 3, 17, 24, 17}, swigluoai, interleaved, B::both).with(P::holes).with(kOai).on_rank(0, 2),
    Row({8, 3, 33, 9, 17}, silu, up_gate, B::none).with(P::duplicates).quickly(),
    Row({2, 2, 7, 40, 7}, gelu, gate_up, B::both).with(P::duplicates),
    Row({33, 2, 24, 17, 130}, silu, gate_up, B::none).with(P::hot),
    Row({8, 4, 17, 23, 64}, silu, gate_up, B::both).with(P::hot).with(kLimit).on_rank(1, 2),
    Row({5, 2, 40, 24, 17}, silu, gate_up, B::both).with(P::zero_weights).quickly(),
    Row({8, 3, 23, 33, 33}, relu2_no_mul, gate_up, B::none).with(P::zero_weights),
    Row({5, 2, 33, 17, 17}, silu, up_gate, B::both).with(P::out_of_range),
    Row({8, 2, 17, 24, 7}, silu, gate_up, B::none).with(P::out_of_range).on_rank(1, 2),
    Row({5, 2, 24, 9, 17}, silu, gate_up, B::both).with(P::all_empty),
    // The router weight on the input.
    Row({8, 1, 40, 33, 17}, silu, gate_up, B::none).with(R::llama4).on_input().quickly(),
    Row({5, 1, 33, 24, 7}, swigluoai, interleaved, B::both).with(P::holes).with(R::llama4).with(kOai).on_input(),
    Row({5, 1, 17, 9, 33}, gelu, up_gate, B::none).with(P::hot).with(R::llama4).on_rank(0, 2).on_input(),
    // Experts on other ranks; in the last two this rank holds one expert, and none.
    Row({8, 2, 40, 24, 17}, silu, gate_up, B::both).with(R::deepseek_v3).on_rank(0, 2).quickly(),
    Row({33, 4, 23, 17, 33}, silu, up_gate, B::none).on_rank(3, 4),
    Row({5, 2, 17, 40, 17}, gelu_tanh, interleaved, B::both).with(P::duplicates).on_rank(2, 4),
    Row({2, 2, 24, 7, 7}, silu, gate_up, B::none).on_rank(1, 2),
    Row({1, 1, 9, 17, 7}, silu, gate_up, B::both).on_rank(1, 2),
    // Slices of larger tensors, and weights of another type.
    Row({5, 2, 40, 17, 17}, silu, gate_up, B::both).strided(),
    Row({8, 2, 33, 24, 7}, swigluoai, interleaved, B::both).with(P::holes).with(kOai).strided(),
    Row({8, 2, 24, 33, 17}, silu, gate_up, B::none).mixed().quickly(),
    Row({5, 3, 17, 40, 7}, gelu, up_gate, B::both).mixed(),
    // Extreme and awkward sizes.
    Row({1, 1, 1, 1, 1}, silu, gate_up, B::both),
    Row({1, 1, 511, 7, 2}, silu, interleaved, B::none).with(R::default_),
    Row({2, 2, 1, 511, 1}, silu, gate_up, B::none),
    Row({2, 1, 7, 1, 130}, gelu, up_gate, B::both),
    Row({5, 5, 511, 40, 7}, silu, gate_up, B::none),
    Row({8, 8, 40, 511, 2}, silu, gate_up, B::both),
    Row({8, 2, 128, 64, 64}, silu, gate_up, B::none),
    Row({8, 2, 129, 65, 65}, silu, up_gate, B::both),
    Row({5, 2, 256, 96, 130}, silu, interleaved, B::none),
    Row({33, 6, 72, 56, 33}, silu, gate_up, B::none),
    Row({33, 33, 17, 9, 7}, silu, gate_up, B::both).with(R::default_),
    Row({300, 7, 16, 11, 33}, silu, gate_up, B::none),
    Row({8, 2, 40, 24, 1}, silu, gate_up, B::both),
    Row({8, 2, 511, 130, 1}, silu, gate_up, B::none),
    Row({8, 2, 40, 24, 0}, silu, gate_up, B::both),
};

}  // namespace

std::span<const GridRow> problem_grid() noexcept {
  return kGrid;
}

}  // namespace conclave::verify_detail
