// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Grouped parts of the standard format. In: hidden states [M, H], ids [M, k]. Out: rows after GEMM2, sorted by expert,
// with the row of each slot: what a weighted sum, here or at a consumer, starts from.
#pragma once

#include "experts/cuda/grouped_experts.hpp"

namespace conclave::experts::cuda {

class SortedExperts : public GroupedExperts {
 public:
  using GroupedExperts::GroupedExperts;
  std::string describe(std::int64_t num_tokens) const override { return to_string(choice_for(num_tokens)); }

 protected:
  /// What lies in ExpertsBuffers::scratch.
  struct Scratch {
    TileMap map;
    void* padded_input = nullptr;  ///< [M, padded H], where rows of the input are not multiples of 16 bytes.
    void* sorted_input = nullptr;  ///< [slots, padded H], where rows are sorted before GEMM1.
  };

  /// M k. Throws Error where i32 cannot count them.
  std::int64_t slots_of(std::int64_t num_tokens) const;
  Scratch take_scratch(Arena& arena, std::int64_t num_tokens) const;
  /// The first product's tokens, and both products: tile map, GEMM1 with the activation, GEMM2.
  /// `inner` [slots, inner()], `rows` [slots, hidden()] of row_dtype().
  void sorted_products(const ExpertsInput& input, const DeviceWeights& weights, const Scratch& scratch,
                       const TensorView& inner, const TensorView& rows, Stream stream) const;
};

}  // namespace conclave::experts::cuda
