// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One grouped product on Hopper: for every token tile (expert, rows) of a tile map,
//   out[row, :] = epilogue(weights[expert] . tokens[row])
// with the weights as the 64-row operand of wgmma and the tokens as its columns, whatever their number: eight tokens
// cost what one costs, so decoding and prefill are the same kernel at different widths.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "conclave/dtype.hpp"
#include "experts/activation.hpp"
#include "experts/cuda/gemm_tile.hpp"
#include "experts/cuda/tile_map.hpp"

namespace conclave::experts::cuda {

/// What happens to the sums before they are rounded.
enum class Epilogue : std::uint8_t {
  linear,  ///< The product and its bias.
  swiglu,  ///< Gate and up rows alternate in groups of 8; silu, swigluoai and swigluoai_uninterleave, which are one
           ///< form.
  gated,   ///< As swiglu, any gated activation: slower, compiled for narrow tiles only.
  plain,   ///< Any activation of one argument; the same remark.
};

struct GroupedGemm {
  const TokenTile* tiles = nullptr;
  const std::int32_t* num_tiles = nullptr;
  std::int32_t weight_rows = 0;  ///< Rows of one expert's matrix, padding of the layout included.
  std::int32_t depth = 0;        ///< K, a multiple of 8.

  /// Tokens by pointer: row r of the sorted rows is row row_tokens[r] of `tokens`. Null: tokens come through the
  /// tensor map, sorted already.
  const void* tokens = nullptr;
  std::int64_t token_stride = 0;  ///< In elements, a multiple of 8.
  const std::int32_t* row_tokens = nullptr;

  void* out = nullptr;          ///< Sorted rows: of the dtype, but f32 for the linear product of f16.
  std::int64_t out_stride = 0;  ///< In elements, a multiple of 8.
  const float* bias = nullptr;  ///< [experts, weight_rows] in the order of the packed rows, or null.

  ActivationFn activation;  ///< swiglu, gated and plain.
};

/// `weights`: 3-D map [expert, row, K] with boxes of {1, tile.box_rows(), 64}; `tokens`: 2-D map [row, K] with
/// boxes of {tile.tokens, 64}, ignored where the work gathers. `max_blocks`: the multiprocessors to use.
void grouped_gemm(const CUtensorMap& weights, const CUtensorMap& tokens, const GroupedGemm& work, GemmTile tile,
                  Epilogue epilogue, DType dtype, int max_blocks, cudaStream_t stream);

/// Elements of K in one stage: 128 bytes, the width of the swizzle.
inline constexpr int kStageDepth = 64;

}  // namespace conclave::experts::cuda
