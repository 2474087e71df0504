// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: packed rows of one tile, panels of weights. Out: their products, summed in registers. Every sum adds its products
// one k (or one pair) after the other, whatever the tile's rows and panels: that is what makes a row's result
// independent of the rows beside it, bit by bit.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace conclave::experts::grouped {
namespace {

/// How far ahead of the loop a stream of weights is fetched. Less than half a KiB comes too late for DRAM, more than
/// two fall out of the 32 KiB L1 with several streams.
inline constexpr std::int64_t kPrefetchBytes = 1024;

/// `Element` (a layout, register and instruction: f32_avx2.cpp shows one) -> multiply().
template <class Element>
struct VectorKernel {
  using Input = typename Element::Input;
  using Weight = typename Element::Weight;
  using Vec = typename Element::Vec;
  static constexpr int kLanes = Element::kLanes;
  static constexpr int kVectors = 2;  ///< Of a panel: gate and up.
  static constexpr int kPanel = kVectors * kLanes;
  static constexpr int kWeightGroup = Element::kWeightGroup;
  static constexpr int kInputGroup = kWeightGroup / Element::kSteps;
  static constexpr int kRowTile = Element::kSums / kVectors;

  /// Nothing to set up, unlike the tile unit of AMX.
  struct Session {
    ~Session() {}
  };

  /// Panels read side by side when a tile has few rows: independent sums hide the latency of the multiplier, and
  /// several streams get more out of DRAM than one. Limited by registers, of which each row takes one more then.
  static constexpr int streams(int rows) {
    constexpr int kRegisters = Element::kSums + 1;
    if ((4 * kVectors + 1) * rows <= kRegisters) return 4;
    return (2 * kVectors + 1) * rows <= kRegisters ? 2 : 1;
  }

  /// c[panel][row][column] (+)= a[k][row] . b[panel][k][column]. `k` is a multiple of the weight group.
  template <int Rows, int Panels, bool Stream>
  static void multiply(const Input* a, const Weight* b, std::int64_t panel_stride, std::int64_t k, float* c,
                       bool accumulate) {
    constexpr int kColumns = Panels * kVectors;
    Vec sum[Rows][kColumns];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < kColumns; ++j)
        sum[r][j] = accumulate ? Element::load(address(c, r, j, Rows)) : Element::set(0.0f);
    }
    for (std::int64_t i = 0; i < k; i += kWeightGroup) {
      if constexpr (Stream) {
#pragma GCC unroll 8
        for (int p = 0; p < Panels; ++p) prefetch(b + p * panel_stride);
      }
      step<Rows, Panels, 0>(a, b, panel_stride, sum);
      if constexpr (Element::kSteps == 2) {
        // Loads again what the first step loaded, and not before: kept in registers, it would push sums out to memory.
        asm volatile("" ::: "memory");
        step<Rows, Panels, 1>(a, b, panel_stride, sum);
      }
      a += Rows * kWeightGroup;
      b += kPanel * kWeightGroup;
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < kColumns; ++j) Element::store(address(c, r, j, Rows), sum[r][j]);
    }
  }

 private:
  [[gnu::always_inline]] static float* address(float* c, int row, int column, int rows) {
    return c + (column / kVectors * rows + row) * kPanel + column % kVectors * kLanes;
  }

  [[gnu::always_inline]] static void prefetch(const Weight* b) {
    constexpr std::int64_t kLine = 64;
    const char* from = reinterpret_cast<const char*>(b) + kPrefetchBytes;
#pragma GCC unroll 8
    for (std::int64_t byte = 0; byte < kPanel * kWeightGroup * std::int64_t{sizeof(Weight)}; byte += kLine)
      _mm_prefetch(from + byte, _MM_HINT_NTA);
  }

  /// One instruction for each sum. One panel: its weights stay in registers while the rows pass. More panels, hence
  /// few rows: the rows stay and the weights pass.
  template <int Rows, int Panels, int Step>
  [[gnu::always_inline]] static void step(const Input* a, const Weight* b, std::int64_t panel_stride,
                                          Vec (&sum)[Rows][Panels * kVectors]) {
    const Input* x = a + Step * Rows * kInputGroup;
    if constexpr (Panels == 1) {
      const Vec w0 = Element::template weight<Step>(b);
      const Vec w1 = Element::template weight<Step>(b + kLanes * kWeightGroup);
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        const Vec in = Element::input(x + r * kInputGroup);
        sum[r][0] = Element::product(in, w0, sum[r][0]);
        sum[r][1] = Element::product(in, w1, sum[r][1]);
      }
    } else {
      Vec in[Rows];
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) in[r] = Element::input(x + r * kInputGroup);
#pragma GCC unroll 8
      for (int j = 0; j < Panels * kVectors; ++j) {
        const Vec w =
            Element::template weight<Step>(b + j / kVectors * panel_stride + j % kVectors * kLanes * kWeightGroup);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) sum[r][j] = Element::product(in[r], w, sum[r][j]);
      }
    }
  }
};

}  // namespace
}  // namespace conclave::experts::grouped
