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
  bool wide;
  GemmKind* bf16;
  GemmKind* f16;
};

constexpr Kind kKinds[] = {
    {Epilogue::swiglu, true, false, gemm_swiglu_narrow_bf16, gemm_swiglu_narrow_f16},
    {Epilogue::swiglu, true, true, gemm_swiglu_wide_bf16, gemm_swiglu_wide_f16},
    {Epilogue::swiglu, false, true, gemm_sorted_wide_bf16, gemm_sorted_wide_f16},
    {Epilogue::gated, true, false, gemm_gated_narrow_bf16, gemm_gated_narrow_f16},
    {Epilogue::plain, true, false, gemm_plain_narrow_bf16, gemm_plain_narrow_f16},
    {Epilogue::linear, false, false, gemm_linear_narrow_bf16, gemm_linear_narrow_f16},
    {Epilogue::linear, false, true, gemm_linear_wide_bf16, gemm_linear_wide_f16},
};

}  // namespace

void grouped_gemm(const CUtensorMap& weights, const CUtensorMap& tokens, const GroupedGemm& work, GemmTile tile,
                  Epilogue epilogue, DType dtype, int max_blocks, cudaStream_t stream) {
  const bool gathers = work.row_tokens != nullptr;
  for (const Kind& kind : kKinds)
    if (kind.epilogue == epilogue && kind.gathers == gathers && kind.wide == (tile.tokens >= 128)) {
      GemmKind* start = dtype == DType::bf16 ? kind.bf16 : kind.f16;
      if (start(weights, tokens, work, tile, max_blocks, stream)) return;
    }
  fail(ErrorKind::unsupported, "grouped_gemm: no variant for epilogue {}, {} tokens, tiles of {} x {} x {}, {}",
       static_cast<int>(epilogue), gathers ? "gathered" : "sorted", tile.tokens, tile.weight_rows, tile.blocks,
       name_of(dtype));
}

}  // namespace conclave::experts::cuda
