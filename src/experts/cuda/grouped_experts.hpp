// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What every part built on a grouped product has in common: which problems it takes, padded sizes, packed weights, and
// the two products over the rows of a tile map. In: rows and a map. Out: rows after GEMM2, unweighted.
#pragma once

#include <memory>
#include <string>

#include "conclave/experts.hpp"
#include "conclave/support.hpp"
#include "experts/activation.hpp"
#include "experts/cuda/device_weights.hpp"
#include "experts/cuda/engine.hpp"
#include "experts/cuda/tile_map.hpp"

namespace conclave::experts::cuda {

/// A GPU that the engine knows, bf16 or f16 throughout, at most 1024 experts.
Support supports_grouped(const Problem& problem, const GroupedEngine& engine);

/// The narrowest tile of any engine: what a tile map must have room for, whatever tile a token count gets.
inline constexpr std::int64_t kFewestTileRows = 8;

/// How the tile map must cut rows for these tiles.
inline TileHeights heights_of(const GemmChoice& choice) {
  return {choice.tile.map_rows(), !choice.tile.token_rows};
}

class GroupedExperts : public ModularExperts {
 public:
  /// `engine` outlives the part.
  GroupedExperts(std::string name, const Problem& problem, const GroupedEngine& engine);

  const std::string& name() const noexcept override { return name_; }
  bool supports_expert_map() const noexcept override { return true; }
  std::unique_ptr<PackedWeights> pack(const ExpertWeights& weights, Stream stream) const override;
  void update(PackedWeights& packed, const ExpertWeights& weights, Stream stream) const override;

 protected:
  struct Tokens {
    const void* rows = nullptr;  ///< At a multiple of 16 bytes.
    std::int64_t stride = 0;     ///< In elements, a multiple of 8.
  };
  struct Products {
    TileMap map;
    Tokens tokens;                 ///< Gathered through map.row_tokens; or
    const void* sorted = nullptr;  ///< [rows, hidden()] in the order of the map.
    std::int64_t rows = 0;         ///< Of the two below, at most.
    void* inner = nullptr;         ///< [rows, inner()]
    void* out = nullptr;           ///< [rows, hidden()] of row_dtype()
  };

  const Problem& problem() const noexcept { return problem_; }
  const MoeConfig& moe() const noexcept { return problem_.moe; }
  std::int64_t hidden() const noexcept { return hidden_; }  ///< expert_width, padded to multiples of 16 bytes.
  std::int64_t inner() const noexcept { return inner_; }    ///< intermediate_size, likewise.
  /// Of rows that are still to be weighted: f16 cannot hold every such sum.
  DType row_dtype() const noexcept { return moe().dtype == DType::f16 ? DType::f32 : moe().dtype; }
  GemmChoice choice_for(std::int64_t num_tokens) const;
  /// Of a layer whose rows are summed; 0 where the device's ceilings, or the engine's share of them, are not known.
  double predicted_seconds(std::int64_t num_tokens) const;

  /// `count` rows at `rows`, or, where they are not laid out as the products want them, their copy in `padded`
  /// [count, hidden()].
  Tokens aligned(const void* rows, std::int64_t stride, std::int64_t count, void* padded, Stream stream) const;
  void products(const Products& work, const DeviceWeights& weights, const GemmChoice& choice, Stream stream) const;

 private:
  GemmProblem sizes() const;

  std::string name_;
  Problem problem_;
  const GroupedEngine& engine_;
  ActivationFn activation_;
  std::int64_t hidden_, inner_;
};

}  // namespace conclave::experts::cuda
