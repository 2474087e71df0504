// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: packed rows of one tile in f32, panels of codes (ScaledFormat in engine.hpp). Out: products of the rows with
// code * scale, decoded in registers. The scale multiplies the sum of a group, not each weight: that product would be a
// fourth of the work on a weight of four bits. So a sum is the sum over the groups, in their order, of scale times the
// sum of the group's products of inputs and codes, one k after the other.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <utility>

#include "experts/cpu/engine.hpp"
#include "experts/cpu/vector_kernel.hpp"

namespace conclave::experts::grouped {
namespace {

/// c[row][column] (+)= scale * sum, one row after the other; `c` and `scales` have `Columns` registers in a row.
template <class Simd, int Rows, int Columns, class Address>
[[gnu::always_inline]] inline void add_group(const typename Simd::Vec (&sum)[Rows][Columns], const float* scales,
                                             Address&& address) {
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < Columns; ++j) {
      float* to = address(r, j);
      Simd::store(to, Simd::multiply_add(sum[r][j], Simd::load(scales + j * Simd::kLanes), Simd::load(to)));
    }
  }
}

/// Of what decode_block() makes: for each group the scales of the columns, then [k][column] the numbers of the codes.
template <class Element>
struct DecodedGroupKernel {
  using Input = float;
  using Weight = float;
  using Vec = typename Element::Vec;
  static constexpr int kLanes = Element::kLanes;
  static constexpr int kPanel = 2 * kLanes;
  static constexpr int kWeightGroup = 1;
  static constexpr std::int64_t kGroup = Element::kFormat.scale_group;

  template <int Rows, int Panels, bool Stream>
  static void multiply(const Input* a, const Weight* b, std::int64_t /*panel_stride*/, std::int64_t k, float* c,
                       bool accumulate, Ahead ahead) {
    static_assert(Panels == 1 && !Stream);
    if (!accumulate) __builtin_memset(c, 0, Rows * kPanel * sizeof(float));
    for (std::int64_t group = 0; group < k; group += kGroup) {
      const Weight* scales = b;
      b += kPanel;
      Vec sum[Rows][2];
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) sum[r][0] = sum[r][1] = Element::set(0.0f);
      for (std::int64_t i = 0; i < kGroup; ++i, a += Rows, b += kPanel) {
        _mm_prefetch(ahead.weights, _MM_HINT_T1);
        ahead.weights += ahead.weight_step;
        const Vec w0 = Element::load(b);
        const Vec w1 = Element::load(b + kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
          const Vec in = Element::broadcast(a + r);
          sum[r][0] = Element::multiply_add(in, w0, sum[r][0]);
          sum[r][1] = Element::multiply_add(in, w1, sum[r][1]);
        }
      }
      add_group<Element>(sum, scales, [c](int r, int j) { return c + r * kPanel + j * kLanes; });
    }
  }
};

/// `Element` has registers (simd_<isa>.hpp), a ScaledFormat kFormat, and
///   Zeros, spread_zeros(zero_points, to)  what prepare() needs of the zero points of a panel: an array for each
///   register prepare<Half>(codes, zeros)           codes of a register's columns for four values of k: Half 1 is the
///   later four
///                                         of a step of eight
///   number<J>(prepared)                   of value J of the four, times a power of two
///   load_scales(from, global, to)         scales of the columns as f32, over that power
template <class Element>
struct GroupSumKernel {
  using Input = float;
  using Weight = std::uint8_t;
  using Vec = typename Element::Vec;
  using Zeros = typename Element::Zeros;
  static constexpr const ScaledFormat& kFormat = Element::kFormat;
  static constexpr int kLanes = Element::kLanes;
  static constexpr int kVectors = 2;  ///< Of a panel: gate and up.
  static constexpr int kPanel = kVectors * kLanes;
  static constexpr int kInputGroup = 1;
  static constexpr int kRowTile = Element::kSums / kVectors;
  static constexpr int kQuad = 4;
  static constexpr int kHalves = 8 / kFormat.bits;
  static constexpr int kWeightGroup = kHalves * kQuad;  ///< Four bytes of a column.
  static constexpr std::int64_t kVectorBytes = kQuad * kLanes;
  static constexpr std::int64_t kStepBytes = kVectors * kVectorBytes;
  static_assert(kFormat.scale_group % kWeightGroup == 0 && kFormat.group % kFormat.scale_group == 0);

  static constexpr std::int64_t kGroupBytes = kFormat.group_bytes(kPanel);
  static constexpr std::int64_t offset(std::int64_t k) { return k / kFormat.group * kGroupBytes; }

  struct Session {
    explicit Session(std::int64_t /*rows*/) {}
    ~Session() {}
  };

  /// Panels side by side, as in VectorKernel: as many as their sums and codes, an input of each row and two temporaries
  /// have registers.
  static constexpr int streams(int rows) {
    constexpr int kRegisters = kLanes == 16 ? 32 : 16;
    constexpr int kCodes = Element::kCodeRegisters;
    const auto fits = [=](int panels) { return panels * kVectors * (rows + kCodes) + rows + 2 <= kRegisters; };
    return fits(4) ? 4 : fits(2) ? 2 : 1;
  }

  /// c[panel][row][column] (+)= a[k][row] . b[panel][k][column]; `k` is a multiple of the format's group.
  template <int Rows, int Panels, bool Stream>
  static void multiply(const Input* a, const Weight* b, std::int64_t panel_stride, std::int64_t k, float* c,
                       bool accumulate, Ahead /*ahead*/) {
    static_assert(Stream, "blocks are multiplied by the kernel of decoded groups");
    if (!accumulate) __builtin_memset(c, 0, Panels * Rows * kPanel * sizeof(float));
    const Weight* end = b + panel_stride;
    for (std::int64_t group = 0; group < k; group += kFormat.group, b += kGroupBytes) {
      const Weight* part = b + kGlobalBytes;
      for (std::int64_t i = 0; i < kFormat.group; i += kFormat.scale_group, part += kPartBytes) {
        run_part<Rows, Panels>(a, b, part, stream_ahead<Panels>(part, end, panel_stride), panel_stride, c);
        a += kFormat.scale_group * Rows;
      }
    }
  }

  using DecodedKernel = DecodedGroupKernel<Element>;
  static constexpr std::int64_t decoded_floats(std::int64_t k) { return (k + k / kFormat.scale_group) * kPanel; }

  /// What DecodedKernel reads, for `k` values from the start of a group.
  static void decode_block(const Weight* b, std::int64_t k, float* to) {
    for (std::int64_t group = 0; group < k; group += kFormat.group, b += kGroupBytes) {
      const Weight* part = b + kGlobalBytes;
      for (std::int64_t i = 0; i < kFormat.group; i += kFormat.scale_group, part += kPartBytes) {
        Element::load_scales(part, reinterpret_cast<const float*>(b), to);
        to += kPanel;
        alignas(64) Zeros zeros[kVectors];
        Element::spread_zeros(part + kScaleBytes, zeros);
        for (const Weight* codes = part + kHeadBytes; codes < part + kPartBytes; codes += kStepBytes) {
          decode_half<0>(codes, zeros, to);
          if constexpr (kHalves == 2) decode_half<1>(codes, zeros, to + kQuad * kPanel);
          to += kWeightGroup * kPanel;
        }
      }
    }
  }

 private:
  static constexpr std::int64_t kGlobalBytes = kFormat.has_global_scale ? kPanel * 4 : 0;
  static constexpr std::int64_t kPartBytes = kFormat.part_bytes(kPanel);
  static constexpr std::int64_t kScaleBytes = kPanel * (kFormat.scale == DType::f32 ? 4 : 1);
  static constexpr std::int64_t kHeadBytes = kScaleBytes + (kFormat.has_zero_points ? kPanel : 0);

  template <int Half>
  [[gnu::always_inline]] static void decode_half(const Weight* codes, const Zeros* zeros, float* to) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const auto prepared = Element::template prepare<Half>(codes + v * kVectorBytes, zeros[v]);
      each_of_quad([&]<int J>() __attribute__((always_inline)) {
        Element::store(to + J * kPanel + v * kLanes, Element::template number<J>(prepared));
      });
    }
  }

  template <class Body>
  [[gnu::always_inline]] static void each_of_quad(Body&& body) {
    body.template operator()<0>();
    body.template operator()<1>();
    body.template operator()<2>();
    body.template operator()<3>();
  }

  /// All lines of one step: one with AVX2, two with AVX-512.
  [[gnu::always_inline]] static void fetch_stream(const Weight* codes, std::int64_t distance) {
#pragma GCC unroll 2
    for (std::int64_t byte = 0; byte < kStepBytes; byte += 64)
      _mm_prefetch(reinterpret_cast<const char*>(codes) + distance + byte, _MM_HINT_T0);
  }

  /// The values of k that share their scales.
  template <int Rows, int Panels>
  [[gnu::always_inline]] static void run_part(const Input* a, const Weight* group, const Weight* part,
                                              std::int64_t ahead, std::int64_t panel_stride, float* c) {
    constexpr int kColumns = Panels * kVectors;
    alignas(64) float scales[Panels * kPanel];
    alignas(64) Zeros zeros[Panels * kVectors];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      _mm_prefetch(reinterpret_cast<const char*>(part + p * panel_stride) + ahead, _MM_HINT_T0);
      Element::load_scales(part + p * panel_stride, reinterpret_cast<const float*>(group + p * panel_stride),
                           scales + p * kPanel);
      Element::spread_zeros(part + p * panel_stride + kScaleBytes, zeros + p * kVectors);
    }
    Vec sum[Rows][kColumns];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < kColumns; ++j) sum[r][j] = Element::set(0.0f);
    }
    const Weight* codes = part + kHeadBytes;
#pragma GCC unroll 1
    for (std::int64_t i = 0; i < kFormat.scale_group; i += kWeightGroup) {
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) fetch_stream(codes + p * panel_stride, ahead);
      add_half<Rows, Panels, 0>(a, codes, zeros, panel_stride, sum);
      if constexpr (kHalves == 2) add_half<Rows, Panels, 1>(a + kQuad * Rows, codes, zeros, panel_stride, sum);
      codes += kStepBytes;
      a += kWeightGroup * Rows;
    }
    add_group<Element>(sum, scales,
                       [c](int r, int j) { return c + (j / kVectors * Rows + r) * kPanel + j % kVectors * kLanes; });
  }

  /// Four values of k: for each, one product for every sum, so that no sum waits for itself.
  template <int Rows, int Panels, int Half>
  [[gnu::always_inline]] static void add_half(const Input* a, const Weight* codes, const Zeros* zeros,
                                              std::int64_t panel_stride, Vec (&sum)[Rows][Panels * kVectors]) {
    constexpr int kColumns = Panels * kVectors;
    typename Element::Codes prepared[kColumns];
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j)
      prepared[j] =
          Element::template prepare<Half>(codes + j / kVectors * panel_stride + j % kVectors * kVectorBytes, zeros[j]);
    each_of_quad([&]<int J>() __attribute__((always_inline)) {
      if constexpr (Panels == 1) {
        const Vec w0 = Element::template number<J>(prepared[0]);
        const Vec w1 = Element::template number<J>(prepared[1]);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
          const Vec in = Element::broadcast(a + J * Rows + r);
          sum[r][0] = Element::multiply_add(in, w0, sum[r][0]);
          sum[r][1] = Element::multiply_add(in, w1, sum[r][1]);
        }
      } else {
        Vec in[Rows];
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) in[r] = Element::broadcast(a + J * Rows + r);
#pragma GCC unroll 8
        for (int j = 0; j < kColumns; ++j) {
          const Vec w = Element::template number<J>(prepared[j]);
#pragma GCC unroll 16
          for (int r = 0; r < Rows; ++r) sum[r][j] = Element::multiply_add(in[r], w, sum[r][j]);
        }
      }
    });
  }
};

}  // namespace
}  // namespace conclave::experts::grouped
