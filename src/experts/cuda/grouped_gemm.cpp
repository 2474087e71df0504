// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// grouped_gemm.hpp: picks the compiled kind.
#include "experts/cuda/grouped_gemm.hpp"

#include "base/error.hpp"
#include "experts/cuda/gemm_kinds.hpp"

namespace conclave::experts::cuda {
namespace {

struct Kind {
  Epilogue epilogue;
  bool gathers;
  enum class Tiles { narrow, wide, token_rows } tiles;
  GemmKind* bf16;
  GemmKind* f16;
};

constexpr Kind kKinds[] = {
    {Epilogue::swiglu, true, Kind::Tiles::narrow, gemm_swiglu_narrow_bf16, gemm_swiglu_narrow_f16},
    {Epilogue::swiglu, true, Kind::Tiles::wide, gemm_swiglu_wide_bf16, gemm_swiglu_wide_f16},
    {Epilogue::swiglu, false, Kind::Tiles::wide, gemm_sorted_wide_bf16, gemm_sorted_wide_f16},
    {Epilogue::gated, true, Kind::Tiles::narrow, gemm_gated_narrow_bf16, gemm_gated_narrow_f16},
    {Epilogue::plain, true, Kind::Tiles::narrow, gemm_plain_narrow_bf16, gemm_plain_narrow_f16},
    {Epilogue::linear, false, Kind::Tiles::narrow, gemm_linear_narrow_bf16, gemm_linear_narrow_f16},
    {Epilogue::linear, false, Kind::Tiles::wide, gemm_linear_wide_bf16, gemm_linear_wide_f16},
    {Epilogue::swiglu, true, Kind::Tiles::token_rows, gemm_swiglu_token_rows_bf16, gemm_swiglu_token_rows_f16},
    {Epilogue::linear, false, Kind::Tiles::token_rows, gemm_linear_token_rows_bf16, gemm_linear_token_rows_f16},
};

Kind::Tiles tiles_of(const GemmTile& tile) {
  if (tile.token_rows) return Kind::Tiles::token_rows;
  return tile.tokens >= 128 ? Kind::Tiles::wide : Kind::Tiles::narrow;
}

}  // namespace

void grouped_gemm(const CUtensorMap& weights, const CUtensorMap& tokens, const GroupedGemm& work, GemmTile tile,
                  Epilogue epilogue, DType dtype, int max_blocks, cudaStream_t stream) {
  const bool gathers = work.row_tokens != nullptr;
  for (const Kind& kind : kKinds)
    if (kind.epilogue == epilogue && kind.gathers == gathers && kind.tiles == tiles_of(tile)) {
      GemmKind* start = dtype == DType::bf16 ? kind.bf16 : kind.f16;
      if (start(weights, tokens, work, tile, max_blocks, stream)) return;
    }
  fail(ErrorKind::unsupported, "grouped_gemm: no variant for epilogue {}, {} tokens, tiles of {} x {} x {}, {}",
       static_cast<int>(epilogue), gathers ? "gathered" : "sorted", tile.tokens, tile.weight_rows, tile.blocks,
       name_of(dtype));
}

}  // namespace conclave::experts::cuda
