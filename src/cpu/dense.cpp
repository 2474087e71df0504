// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a, w, bias. Out: a . w^T + bias, the product cut into tiles that threads take.
#include "cpu/dense.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/tensor_format.hpp"
#include "cpu/parallel_for.hpp"
#include "cpu/variants.hpp"

namespace conclave::cpu {
namespace {

/// Multiply-adds that one thread does in the time a parallel region costs (about 3 us at 10 per nanosecond).
constexpr std::int64_t kSerialProducts = 32 * 1024;
/// Rows and columns of one unit of work. 48 rows of a and 16 of w stay in the second-level cache up to K = 4096, and a
/// few dozen rows make the dot products, not the loads of w, the cost.
constexpr std::int64_t kTileRows = 48;
constexpr std::int64_t kTileCols = 16;

void check(const char* what, const ConstTensorView& view, int rank) {
  require(view.rank == rank, "dense: {}: given {}, expected rank {}", what, view, rank);
  require(is_compute_dtype(view.dtype), "dense: {}: given {}, expected f32, bf16 or f16", what, view);
  const bool contiguous = view.size(-1) <= 1 || view.stride(-1) == 1;
  require(contiguous, "dense: {}: given {}, expected contiguous columns", what, view);
}

void check_shapes(const ConstTensorView& a, const ConstTensorView& w, const std::optional<ConstTensorView>& bias,
                  const TensorView& out) {
  check("a", a, 2);
  check("w", w, 2);
  check("out", out, 2);
  require(out.dtype == DType::f32, "dense: out: given {}, expected f32", out);
  require(a.size(1) == w.size(1), "dense: a {} and w {}: expected the same number of columns", a, w);
  require(out.size(0) == a.size(0) && out.size(1) == w.size(0), "dense: out: given {}, expected [{}, {}]", out,
          a.size(0), w.size(0));
  if (!bias) return;
  check("bias", *bias, 1);
  require(bias->size(0) == w.size(0), "dense: bias: given {}, expected [{}]", *bias, w.size(0));
}

void add_bias(const DenseTile& t, const ConstTensorView& bias) {
  for (std::int64_t n = t.n0; n < t.n1; ++n) {
    const float b = load_element(bias.data, bias.dtype, n);
    for (std::int64_t m = t.m0; m < t.m1; ++m) t.out[m * t.out_stride + n] += b;
  }
}

}  // namespace

void dense(const ConstTensorView& a, const ConstTensorView& w, const std::optional<ConstTensorView>& bias,
           const TensorView& out, Executor& executor) {
  static const DenseKernel& best = first_that_runs(dense_kernels());
  dense_with(best, a, w, bias, out, executor);
}

void dense_with(const DenseKernel& kernel, const ConstTensorView& a, const ConstTensorView& w,
                const std::optional<ConstTensorView>& bias, const TensorView& out, Executor& executor) {
  check_shapes(a, w, bias, out);
  const std::int64_t rows = a.size(0), cols = w.size(0), k = a.size(1);
  if (rows == 0 || cols == 0) return;
  const DenseTile whole{a.data, a.stride(0), w.data, w.stride(0), out.as<float>(), out.stride(0), 0, rows, 0, cols, k};
  const auto run = [&](DenseTile tile) {
    kernel.run(tile, a.dtype, w.dtype);
    if (bias) add_bias(tile, *bias);
  };
  if (executor.num_threads() == 1 || rows * cols * k <= kSerialProducts) return run(whole);

  // Few rows: each thread streams one contiguous share of w. Many: tiles from a counter.
  if (rows <= 8) {
    executor.parallel([&](int thread) {
      DenseTile tile = whole;
      const Range share = static_share(cols, executor.num_threads(), thread, 8);
      tile.n0 = share.begin;
      tile.n1 = share.end;
      if (share.size() > 0) run(tile);
    });
    return;
  }
  const std::int64_t col_tiles = (cols + kTileCols - 1) / kTileCols;
  const std::int64_t row_tiles = (rows + kTileRows - 1) / kTileRows;
  parallel_for_dynamic(executor, row_tiles * col_tiles, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      DenseTile tile = whole;
      tile.m0 = i / col_tiles * kTileRows;
      tile.m1 = std::min(tile.m0 + kTileRows, rows);
      tile.n0 = i % col_tiles * kTileCols;
      tile.n1 = std::min(tile.n0 + kTileCols, cols);
      run(tile);
    }
  });
}

}  // namespace conclave::cpu
