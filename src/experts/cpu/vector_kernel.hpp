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

/// How far ahead of the loop a stream of weights is fetched: DRAM's latency times what one core can have under way.
inline constexpr std::int64_t kPrefetchBytes = 2048;

/// From `at` to what is read kPrefetchBytes later, in bytes, for `Panels` panels that are read side by side: behind the
/// end of the first comes the second, which is being read already, so that its successor is the panel after the last.
template <int Panels>
[[gnu::always_inline]] inline std::int64_t stream_ahead(const void* at, const void* end, std::int64_t panel_bytes) {
  const bool in_panel = static_cast<const char*>(end) - static_cast<const char*>(at) > kPrefetchBytes;
  return kPrefetchBytes + (in_panel ? 0 : (Panels - 1) * panel_bytes);
}

/// Memory to be fetched into L2 while something else is multiplied, a little in each step: a burst would fill the
/// core's miss buffers and keep its own loads waiting. Steps are bytes for each step of the loop (one weight group).
struct Ahead {
  const char* weights;
  std::int64_t weight_step;
  const char* inputs;
  std::int64_t input_step;
};

/// 48 (AVX2) or 96 KiB of L2: the more panels wait for their sums together, the less often rows come from the shared
/// cache. Half as many cost AVX2 0.5 % at 64 rows an expert, twice as many gained nothing.
template <class Element>
inline constexpr std::int64_t kSumTilesOf = Element::kLanes == 8 ? 128 : 64;

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
  static constexpr int kInputGroup = kWeightGroup / Element::kSteps;  ///< Packed rows: [k / group][row][group].
  static constexpr int kRowTile = Element::kSums / kVectors;

  /// Nothing to set up, unlike the tile unit of AMX.
  struct Session {
    explicit Session(std::int64_t /*rows*/) {}
    ~Session() {}
  };

  /// Panels read side by side when a tile has few rows: independent sums hide the latency of the multiplier, and
  /// several streams get more out of DRAM than one. Limited by registers, of which each row takes one more then.
  static constexpr int streams(int rows) {
    constexpr int kRegisters = Element::kSums + 1;
    if ((4 * kVectors + 1) * rows <= kRegisters) return 4;
    return (2 * kVectors + 1) * rows <= kRegisters ? 2 : 1;
  }

  /// Elements of a panel before its value `k`.
  static constexpr std::int64_t offset(std::int64_t k) { return k * kPanel; }
  static constexpr std::int64_t kStepBytes = kPanel * kWeightGroup * std::int64_t{sizeof(Weight)};
  static_assert(kStepBytes <= 128, "one line in each step of two or more tiles must cover a block");

  /// c[panel][row][column] (+)= a[k][row] . b[panel][k][column]. `k` is a multiple of the weight group. Streaming
  /// fetches its own panels ahead, otherwise `ahead` says what to fetch.
  template <int Rows, int Panels, bool Stream>
  static void multiply(const Input* a, const Weight* b, std::int64_t panel_stride, std::int64_t k, float* c,
                       bool accumulate, Ahead ahead) {
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
      } else {
        // Inputs come from the shared cache in the order in which hardware fetches by itself, fast enough for a vector.
        _mm_prefetch(ahead.weights, _MM_HINT_T1);
        ahead.weights += ahead.weight_step;
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

  /// Not the non-temporal hint, although weights are read once: on Sapphire Rapids it halves the bandwidth.
  [[gnu::always_inline]] static void prefetch(const Weight* b) {
    constexpr std::int64_t kLine = 64;
    const char* from = reinterpret_cast<const char*>(b) + kPrefetchBytes;
#pragma GCC unroll 8
    for (std::int64_t byte = 0; byte < kStepBytes; byte += kLine) _mm_prefetch(from + byte, _MM_HINT_T0);
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
