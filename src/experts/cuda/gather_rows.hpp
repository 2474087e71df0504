// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: hidden states [M, H], the token of each row sorted by expert. Out: those rows, dense: what a product that fetches
// whole boxes of rows needs.
#pragma once

#include <cuda_runtime_api.h>

#include "experts/cuda/tile_map.hpp"

namespace conclave::experts::cuda {

struct GatherRows {
  const void* from = nullptr;    ///< 16-bit elements; rows begin at multiples of 16 bytes
  std::int64_t from_stride = 0;  ///< In elements, a multiple of 8.
  void* to = nullptr;            ///< [rows, columns], dense
  std::int64_t columns = 0;      ///< A multiple of 8.
  const std::int32_t* row_tokens = nullptr;
  const TokenTile* tiles = nullptr;  ///< The last tile ends where the rows do.
  const std::int32_t* num_tiles = nullptr;
};

void gather_rows(const GatherRows& work, int max_blocks, cudaStream_t stream);

}  // namespace conclave::experts::cuda
