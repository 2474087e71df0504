// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// mma_gemm.hpp: picks the compiled kind.
#include "experts/cuda/mma_gemm.hpp"

#include "base/error.hpp"
#include "experts/cuda/mma_kinds.hpp"

namespace conclave::experts::cuda {
namespace {

struct MmaKinds {
  Epilogue epilogue;
  bool wide;
  MmaKind* bf16;
  MmaKind* f16;
};

constexpr MmaKinds kMmaKinds[] = {
    {Epilogue::linear, false, mma_linear_narrow_bf16, mma_linear_narrow_f16},
    {Epilogue::linear, true, mma_linear_wide_bf16, mma_linear_wide_f16},
    {Epilogue::swiglu, false, mma_swiglu_narrow_bf16, mma_swiglu_narrow_f16},
    {Epilogue::swiglu, true, mma_swiglu_wide_bf16, mma_swiglu_wide_f16},
    {Epilogue::gated, false, mma_gated_narrow_bf16, mma_gated_narrow_f16},
    {Epilogue::plain, false, mma_plain_narrow_bf16, mma_plain_narrow_f16},
};

}  // namespace

void mma_gemm(const GroupedProduct& product, GemmTile tile) {
  for (const MmaKinds& kinds : kMmaKinds)
    if (kinds.epilogue == product.epilogue && kinds.wide == (tile.tokens >= 128))
      if ((product.dtype == DType::bf16 ? kinds.bf16 : kinds.f16)(product, tile)) return;
  fail(ErrorKind::unsupported, "mma_gemm: no variant for epilogue {}, tiles of {} x {} x {}, {}",
       static_cast<int>(product.epilogue), tile.tokens, tile.weight_rows, tile.blocks, name_of(product.dtype));
}

}  // namespace conclave::experts::cuda
