// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: packed rows of one tile in digits (digits.hpp), panels of 4-bit codes. Out: products of the rows with
// code * scale. A byte of a row times a byte of codes is one of 32 products of an instruction where f32 has eight, and
// its operands need not become floats first, so that three digits are cheaper than one float: with AVX2, 7.5 operations
// on each 32 weights and row against 8, and 1.5 instead of 10.5 for the weights themselves. Sums of a group are exact;
// they become a float, are scaled and added to the groups before them, in their order. That is independent of rows and
// panels, and the same for one row tile and for many.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <utility>

#include "experts/cpu/digits.hpp"
#include "experts/cpu/engine.hpp"
#include "experts/cpu/vector_kernel.hpp"

namespace conclave::experts::grouped {
namespace {

/// `Element` has registers (simd_<isa>.hpp), a ScaledFormat kFormat of quads, and
///   prepare<Half>(codes)           codes of a register's columns for four values of k, as unsigned bytes: Half 1 is
///   the
///                                  later four of a step of eight
///   Partial, kChain, start(codes, digits), add(partial, codes, digits)   sums of up to kChain quads
///   Int, zero(), join(low, middle, high), add(a, b), to_floats(a)   sums of numbers in int32, one for each column
///   spread_offsets(zeros, to), Offset, load_offset(from)    what is taken from each code of a column
///   kSumFactor, without(sum, offset, row_sum)   sum - offset * row_sum / kSumFactor
///   load_scales(from, global, to)  scales of the columns as f32
template <class Element>
struct DigitKernel {
  using Input = std::int32_t;
  using Weight = std::uint8_t;
  using Vec = typename Element::Vec;
  using Int = typename Element::Int;
  static constexpr const ScaledFormat& kFormat = Element::kFormat;
  static constexpr int kLanes = Element::kLanes;
  static constexpr int kVectors = 2;  ///< Of a panel: gate and up.
  static constexpr int kPanel = kVectors * kLanes;
  static constexpr int kInputGroup = 1;
  static constexpr int kRowTile = 4;
  static constexpr int kHalves = 2;
  static constexpr int kWeightGroup = kHalves * kQuad;  ///< Four bytes of a column.
  static constexpr std::int64_t kVectorBytes = kQuad * kLanes;
  static constexpr std::int64_t kStepBytes = kVectors * kVectorBytes;
  static constexpr std::int64_t kGroupBytes = kFormat.group_bytes(kPanel);
  static constexpr std::int64_t offset(std::int64_t k) { return k / kFormat.group * kGroupBytes; }
  static_assert(kFormat.bits == 4 && kFormat.order == CodeOrder::quads);

  struct Session {
    explicit Session(std::int64_t /*rows*/) {}
    ~Session() {}
  };

  /// Sums of three digits are enough to keep the units busy with one panel.
  static constexpr int streams(int /*rows*/) { return 1; }

  /// c[row][column] (+)= a[k][row] . b[k][column]; `k` is a multiple of the format's group.
  template <int Rows, int Panels, bool Stream>
  static void multiply(const Input* a, const Weight* b, std::int64_t panel_stride, std::int64_t k, float* c,
                       bool accumulate, Ahead ahead) {
    static_assert(Panels == 1);
    if (!accumulate) __builtin_memset(c, 0, Rows * kPanel * sizeof(float));
    const Weight* end = b + panel_stride;
    for (std::int64_t group = 0; group < k; group += kFormat.group, b += kGroupBytes) {
      const Weight* part = b + kGlobalBytes;
      for (std::int64_t i = 0; i < kFormat.group; i += kGroup, part += kPartBytes, a += kGroup * Rows) {
        Head head;
        Element::load_scales(part, reinterpret_cast<const float*>(b), head.scales);
        Element::spread_offsets(part + kScaleBytes, head.offsets);
        if constexpr (Stream) {
          const Codes<true> codes{part + kHeadBytes, stream_ahead<1>(part, end, panel_stride)};
          fetch(part + codes.ahead);
          add_group<Rows>(a, head, codes, c);
        } else {
          fetch_ahead(ahead);
          add_group<Rows>(a, head, Codes<false>{part + kHeadBytes, 0}, c);
        }
      }
    }
  }

 private:
  static constexpr std::int64_t kGroup = kFormat.scale_group;
  static constexpr int kQuads = static_cast<int>(kGroup) / kQuad;
  static constexpr int kChain = Element::kChain < kQuads ? Element::kChain : kQuads;
  static constexpr std::int64_t kGlobalBytes = kFormat.has_global_scale ? kPanel * 4 : 0;
  static constexpr std::int64_t kPartBytes = kFormat.part_bytes(kPanel);
  static constexpr std::int64_t kScaleBytes = kPanel * (kFormat.scale == DType::f32 ? 4 : 1);
  static constexpr std::int64_t kHeadBytes = kScaleBytes + (kFormat.has_zero_points ? kPanel : 0);
  static_assert(kQuads % kChain == 0 && kChain % kHalves == 0);

  /// What the values of k that share their scales have in common, for each column.
  struct Head {
    alignas(64) float scales[kPanel];
    alignas(64) std::int32_t offsets[kPanel];
  };

  /// Whoever reads a line of `Fetched` codes first fetches the one that far ahead: all of a group's at once would fill
  /// the core's miss buffers.
  template <bool Fetched>
  struct Codes {
    const Weight* bytes;
    std::int64_t ahead;

    Codes behind(int quads) const { return {bytes + quads / kHalves * kStepBytes, ahead}; }
    Codes<false> again() const { return {bytes, 0}; }
  };

  [[gnu::always_inline]] static void fetch(const Weight* line) {
    _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T0);
  }

  /// What the steps of one group fetch.
  [[gnu::always_inline]] static void fetch_ahead(Ahead& ahead) {
    for (std::int64_t i = 0; i < kGroup; i += kWeightGroup) {
      _mm_prefetch(ahead.weights, _MM_HINT_T1);
      ahead.weights += ahead.weight_step;
    }
  }

  /// c[row][column] += a group of codes times `Rows` rows. Two rows at a time: the sums of more, of one register of a
  /// panel, would read each byte of the rows twice, which is 18 % slower.
  template <int Rows, bool Fetched>
  [[gnu::always_inline]] static void add_group(const Input* a, const Head& head, Codes<Fetched> codes, float* c) {
    constexpr int kFirst = Rows == 1 ? 1 : 2;
    add_rows<kFirst>(a, head, codes, c);
#pragma GCC unroll 1
    for (int r = kFirst; r + 2 <= Rows; r += 2) add_rows<2>(a + r * kGroup, head, codes.again(), c + r * kPanel);
    if constexpr (Rows > 1 && Rows % 2 == 1)
      add_rows<1>(a + (Rows - 1) * kGroup, head, codes.again(), c + (Rows - 1) * kPanel);
  }

  /// Not inlined: in a function that has more than this to do, GCC copies and spills what just fits the registers.
  template <int Rows, bool Fetched>
  [[gnu::noinline]] static void add_rows(const Input* a, const Head& head, Codes<Fetched> codes, float* c) {
    Int sums[Rows][kVectors];
#pragma GCC unroll 2
    for (int r = 0; r < Rows; ++r) sums[r][0] = sums[r][1] = Element::zero();
#pragma GCC unroll 1
    for (int q = 0; q < kQuads; q += kChain) run_chain<Rows>(a + q * kDigits, codes.behind(q), sums);
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const auto offset = Element::load_offset(head.offsets + v * kLanes);
      const Vec scale = Element::load(head.scales + v * kLanes);
#pragma GCC unroll 2
      for (int r = 0; r < Rows; ++r) {
        const Input* row = a + r * kGroup;
        const Vec number = Element::to_floats(Element::without(sums[r][v], offset, row + 1));
        float* to = c + r * kPanel + v * kLanes;
        // The step is a power of two: this product is exact.
        const Vec stepped = number * Element::broadcast(reinterpret_cast<const float*>(row));
        Element::store(to, Element::multiply_add(stepped, scale, Element::load(to)));
      }
    }
  }

  /// sums += kChain quads.
  template <int Rows, bool Fetched>
  [[gnu::always_inline]] static void run_chain(const Input* a, Codes<Fetched> codes, Int (&sums)[Rows][kVectors]) {
    typename Element::Partial partial[Rows][kVectors][kDigits];
    [&]<int... Quad>(std::integer_sequence<int, Quad...>) __attribute__((always_inline)) {
      (add_quad<Rows, Quad>(a, codes, partial), ...);
    }
    (std::make_integer_sequence<int, kChain>());
#pragma GCC unroll 2
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        const auto& digits = partial[r][v];
        const Int sum = Element::join(digits[0], digits[1], digits[2]);
        sums[r][v] = Element::add(sums[r][v], sum);
      }
  }

  template <int Rows, int Quad, bool Fetched>
  [[gnu::always_inline]] static void add_quad(const Input* a, Codes<Fetched> codes,
                                              typename Element::Partial (&partial)[Rows][kVectors][kDigits]) {
    const Weight* step = codes.bytes + Quad / kHalves * kStepBytes;
    if constexpr (Fetched && Quad % kHalves == 0) fetch(step + codes.ahead);
    const auto gate = Element::template prepare<Quad % kHalves>(step);
    const auto up = Element::template prepare<Quad % kHalves>(step + kVectorBytes);
#pragma GCC unroll 2
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 3
      for (int d = 0; d < kDigits; ++d) {
        const auto digits = Element::four_bytes(a + r * kGroup + kDigitHead + Quad * kDigits + d);
        auto& sum = partial[r];
        sum[0][d] = Quad == 0 ? Element::start(gate, digits) : Element::add(sum[0][d], gate, digits);
        sum[1][d] = Quad == 0 ? Element::start(up, digits) : Element::add(sum[1][d], up, digits);
      }
    }
  }
};

}  // namespace
}  // namespace conclave::experts::grouped
