// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What differs between generations of tensor cores: the grouped product, its tiles, and the GPUs that have it.
#pragma once

#include "conclave/config.hpp"
#include "conclave/support.hpp"
#include "experts/cuda/choose.hpp"
#include "experts/cuda/grouped_product.hpp"
#include "experts/cuda/predict.hpp"

namespace conclave::experts::cuda {

struct GroupedEngine {
  /// Asks about the GPU, and what of the problem depends on it.
  Support (*supports)(const Problem& problem) = nullptr;
  /// Tiles of both products. A pure function: plans are made without a GPU.
  GemmChoice (*choose)(const GemmProblem& problem, std::int64_t num_tokens) = nullptr;
  /// Packed weights have gate and up rows in groups of 8 (DeviceLayout::interleaved); rows begin at multiples of 16
  /// bytes. The sums of a row must depend on that row alone, whatever the tile.
  void (*multiply)(const GroupedProduct& product, GemmTile tile) = nullptr;
  /// Null: not measured, so plans name no time.
  double (*predict)(const GemmProblem& problem, const GemmCeilings& ceilings, std::int64_t num_tokens) = nullptr;
};

extern constinit const GroupedEngine kEngineSm90;  ///< Hopper: grouped_gemm.hpp.
extern constinit const GroupedEngine kEngineSm80;  ///< Ampere and later: mma_gemm.hpp.

}  // namespace conclave::experts::cuda
