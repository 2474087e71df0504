// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The rows of the quantised grid: each pair of weights and activations that engines use, each key at least once. Sizes
// are multiples of the group and of nothing more; those of the block formats end in short blocks.
#include "verify/grid.hpp"

namespace conclave::verify_detail {
namespace {

using enum Activation;
using enum W13Layout;
using K = QuantKey;
using B = Bias;

constexpr ActivationParams kQuantOai{1.3, 0.6, 1.1, std::nullopt};

struct QuantRow : GridRow {
  constexpr QuantRow(K weights, K activations, Shape s, Activation a = silu, W13Layout l = gate_up, B b = B::none) {
    quant = {weights, activations};
    shape = s;
    activation = a;
    layout = l;
    bias = b;
  }
  constexpr QuantRow split() const { return set(&GridRow::split_gate_up, true); }
  constexpr QuantRow with(Picks p) const { return set(&GridRow::picks, p); }
  constexpr QuantRow with(ActivationParams p) const { return set(&GridRow::params, p); }
  constexpr QuantRow on_rank(std::int64_t r, std::int64_t count) const {
    return set(&GridRow::rank, r).set(&GridRow::num_ranks, count);
  }
  constexpr QuantRow on_input() const {
    return set(&GridRow::weight_on_input, true).set(&GridRow::routing, RoutingMethod::llama4);
  }
  constexpr QuantRow quickly() const { return set(&GridRow::quick, true); }

 private:
  template <class T>
  constexpr QuantRow set(T GridRow::*field, T value) const {
    QuantRow copy = *this;
    copy.*field = value;
    return copy;
  }
};

constexpr GridRow kQuantisedGrid[] = {
    // fp8.
    QuantRow(K::fp8_tensor, K::none, {5, 2, 33, 19, 7}, silu, gate_up, B::both).split().quickly(),
    QuantRow(K::fp8_tensor, K::fp8_tensor, {5, 2, 40, 24, 9}, silu, up_gate).split(),
    QuantRow(K::fp8_tensor, K::fp8_tensor_dynamic, {5, 2, 23, 17, 40}),
    QuantRow(K::fp8_tensor, K::fp8_token, {4, 2, 31, 23, 9}, silu, interleaved).split().quickly(),
    QuantRow(K::fp8_channel, K::none, {8, 2, 41, 23, 7}, relu2_no_mul).with(Picks::holes),
    QuantRow(K::fp8_channel, K::fp8_token, {8, 3, 41, 23, 9}, swigluoai, interleaved, B::both)
        .with(kQuantOai)
        .on_rank(1, 2),
    QuantRow(K::fp8_channel, K::fp8_tensor, {5, 2, 19, 33, 9}).with(Picks::duplicates),
    QuantRow(K::fp8_channel, K::fp8_tensor_dynamic, {5, 1, 19, 33, 9}).on_input(),
    QuantRow(K::fp8_block128, K::none, {3, 2, 136, 264, 5}, silu, up_gate),
    QuantRow(K::fp8_block128, K::fp8_block128, {4, 2, 200, 136, 9}).quickly(),
    QuantRow(K::fp8_block128, K::fp8_block64, {3, 2, 136, 72, 9}, gelu_tanh, interleaved),
    QuantRow(K::none, K::fp8_token, {5, 2, 33, 24, 9}),
    // Microscaling.
    QuantRow(K::mxfp8, K::none, {5, 2, 96, 64, 7}),
    QuantRow(K::mxfp8, K::mxfp8, {5, 2, 64, 96, 9}).with(Picks::holes).on_rank(0, 2),
    QuantRow(K::mxfp4, K::none, {5, 2, 96, 32, 9}, swigluoai, interleaved, B::both).with(kQuantOai).quickly(),
    QuantRow(K::mxfp4, K::mxfp8, {5, 2, 64, 96, 9}, swigluoai, interleaved, B::both),
    QuantRow(K::mxfp4, K::fp8_tensor, {5, 2, 32, 64, 9}),
    QuantRow(K::mxfp4, K::mxfp4, {5, 2, 96, 64, 9}, silu, up_gate),
    // nvfp4.
    QuantRow(K::nvfp4, K::none, {5, 2, 48, 80, 7}, silu, up_gate).split().quickly(),
    QuantRow(K::nvfp4, K::nvfp4, {5, 2, 80, 48, 9}).split(),
    QuantRow(K::nvfp4, K::nvfp4_token, {5, 2, 48, 112, 9}, silu, interleaved).split(),
    QuantRow(K::nvfp4, K::nvfp4, {5, 1, 48, 16, 9}, relu2_no_mul).on_input(),
    // int8.
    QuantRow(K::int8_tensor, K::none, {5, 2, 33, 17, 7}, silu, interleaved).split(),
    QuantRow(K::int8_tensor, K::int8_tensor, {5, 2, 40, 24, 9}).split(),
    QuantRow(K::int8_tensor, K::int8_tensor_dynamic, {5, 2, 17, 24, 40}).with(Picks::holes),
    QuantRow(K::int8_channel, K::none, {8, 2, 41, 19, 7}, gelu, up_gate, B::w13),
    QuantRow(K::int8_channel, K::int8_token, {8, 3, 33, 41, 9}).with(Picks::duplicates).quickly(),
    QuantRow(K::int8_group128, K::none, {3, 2, 256, 128, 5}),
    // int4.
    QuantRow(K::int4_group32, K::none, {5, 2, 96, 64, 7}).quickly(),
    QuantRow(K::int4_group64, K::none, {3, 2, 64, 128, 7}, silu, interleaved),
    QuantRow(K::int4_group128, K::none, {3, 2, 128, 256, 5}, silu, up_gate),
    QuantRow(K::int4_channel, K::none, {5, 2, 33, 19, 7}),
    QuantRow(K::int4_group32_zp, K::none, {5, 2, 64, 96, 7}).on_rank(1, 2),
    QuantRow(K::int4_group64_zp, K::none, {3, 2, 128, 64, 7}).quickly(),
    QuantRow(K::int4_group128_zp, K::none, {3, 2, 256, 128, 5}, silu, interleaved),
    QuantRow(K::int4_channel_zp, K::none, {5, 2, 19, 33, 7}, silu, up_gate),
    QuantRow(K::int4_group128, K::fp8_token, {3, 2, 128, 128, 7}),
    QuantRow(K::int4_channel, K::fp8_tensor, {5, 2, 33, 24, 7}),
    QuantRow(K::int4_group32_zp, K::int8_token, {5, 2, 32, 64, 7}),
};

}  // namespace

std::span<const GridRow> quantised_grid() noexcept {
  return kQuantisedGrid;
}

std::span<const DType> dtypes_of(const GridRow& row, std::size_t index) noexcept {
  if (row.quant == QuantConfig{}) return kUnquantised;
  // All in f32, where errors show best, and every other one in a second type.
  constexpr static DType kBoth[][2] = {{DType::f32, DType::bf16}, {DType::f32, DType::f16}};
  return std::span(kBoth[index / 2 % 2]).first(index % 2 == 0 ? 2 : 1);
}

}  // namespace conclave::verify_detail
