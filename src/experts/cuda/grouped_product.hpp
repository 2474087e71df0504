// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One grouped product, whatever the GPU: for every token tile (expert, rows) of a tile map,
//   out[row, :] = epilogue(weights[expert] . tokens[row])
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "conclave/dtype.hpp"
#include "experts/activation.hpp"
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

  /// Row r of the sorted rows is row row_tokens[r] of `tokens`; row r itself where row_tokens is null. A kernel that
  /// fetches by tensor map uses neither in that case.
  const void* tokens = nullptr;
  std::int64_t token_stride = 0;  ///< In elements, a multiple of 8.
  const std::int32_t* row_tokens = nullptr;

  void* out = nullptr;          ///< Sorted rows: of the dtype, but f32 for the linear product of f16.
  std::int64_t out_stride = 0;  ///< In elements, a multiple of 8.
  const float* bias = nullptr;  ///< [experts, weight_rows] in the order of the packed rows, or null.

  ActivationFn activation;  ///< swiglu, gated and plain.
};

/// The product as the host knows it, and where it runs.
struct GroupedProduct {
  GroupedGemm work;
  const void* weights = nullptr;  ///< [num_experts, work.weight_rows, work.depth], dense
  std::int64_t num_experts = 0;
  std::int64_t num_rows = 0;  ///< Sorted rows that there can be.
  Epilogue epilogue = Epilogue::linear;
  DType dtype = DType::bf16;
  int num_multiprocessors = 0;  ///< To use.
  cudaStream_t stream = nullptr;
};

}  // namespace conclave::experts::cuda
