// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: packed rows of one tile in f32, panels of codes with their scales (ScaledFormat in engine.hpp). Out: products of
// the rows with code * scale, decoded in registers. Every sum adds its products one k after the other, exactly as the
// f32 kernel does on weights that were decoded before.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "experts/cpu/engine.hpp"
#include "experts/cpu/vector_kernel.hpp"

namespace conclave::experts::grouped {
namespace {

/// What VectorKernel asks for, for panels of floats [k][column] and rows of floats.
template <class Simd>
struct F32Panel : Simd {
  using Vec = typename Simd::Vec;
  using Weight = float;
  using Input = float;
  static constexpr int kWeightGroup = 1;
  static constexpr int kSteps = 1;
  static Vec input(const Input* x) { return Simd::broadcast(x); }
  template <int>
  static Vec weight(const Weight* w) {
    return Simd::load(w);
  }
  static Vec product(Vec in, Vec w, Vec sum) { return Simd::multiply_add(in, w, sum); }
};

/// `Element` has registers (simd_<isa>.hpp), a ScaledFormat kFormat, and
///   kPairs                       codes of two k share a byte
///   decode(codes, zero_points, w)    one byte of each column -> w[k of the byte][vector], not scaled
///   load_scales(from, global, to)    scales of the columns as f32
///   scaled(w, scale)                 their product
template <class Element>
struct ScaledKernel {
  using Input = float;
  using Weight = std::uint8_t;
  using Vec = typename Element::Vec;
  static constexpr const ScaledFormat& kFormat = Element::kFormat;
  static constexpr int kLanes = Element::kLanes;
  static constexpr int kVectors = 2;  ///< Of a panel: gate and up.
  static constexpr int kPanel = kVectors * kLanes;
  static constexpr int kInputGroup = 1;
  static constexpr int kRowTile = Element::kSums / kVectors;
  static constexpr int kDepth = Element::kPairs ? 2 : 1;  ///< Values of k in a byte.
  /// Bytes of a panel between two prefetches: a line with AVX2, two with AVX-512.
  static constexpr int kBytes = 4;
  static constexpr int kWeightGroup = kBytes * kDepth;
  static constexpr std::int64_t kStepBytes = kBytes * kPanel;
  static_assert(kFormat.scale_group % kWeightGroup == 0 && kFormat.group % kFormat.scale_group == 0);

  static constexpr std::int64_t kGroupBytes = kFormat.group_bytes(kPanel);
  static constexpr std::int64_t offset(std::int64_t k) { return k / kFormat.group * kGroupBytes; }

  struct Session {
    explicit Session(std::int64_t /*rows*/) {}
    ~Session() {}
  };

  /// As in VectorKernel, but a scale takes no register: it multiplies from memory.
  static constexpr int streams(int rows) {
    constexpr int kRegisters = Element::kSums + 1;
    if ((4 * kVectors + 1) * rows <= kRegisters) return 4;
    return (2 * kVectors + 1) * rows <= kRegisters ? 2 : 1;
  }

  /// c[panel][row][column] (+)= a[k][row] . b[panel][k][column]; `k` is a multiple of the format's group.
  template <int Rows, int Panels, bool Stream>
  static void multiply(const Input* a, const Weight* b, std::int64_t panel_stride, std::int64_t k, float* c,
                       bool accumulate, Ahead ahead) {
    Vec sum[Rows][Panels * kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < Panels * kVectors; ++j)
        sum[r][j] = accumulate ? Element::load(address(c, r, j, Rows)) : Element::set(0.0f);
    }
    const Weight* end = b + panel_stride;
    for (std::int64_t group = 0; group < k; group += kFormat.group, b += kGroupBytes) {
      const Weight* part = b + (kFormat.has_global_scale ? kPanel * 4 : 0);
      for (std::int64_t i = 0; i < kFormat.group; i += kFormat.scale_group, part += kFormat.part_bytes(kPanel)) {
        run_part<Rows, Panels, Stream>(a, b, part, stream_ahead<Panels>(part, end, panel_stride), panel_stride, sum,
                                       ahead);
        a += kFormat.scale_group * Rows;
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < Panels * kVectors; ++j) Element::store(address(c, r, j, Rows), sum[r][j]);
    }
  }

  /// Of several row tiles each reads the same block: it is decoded once, and they multiply what this kernel would have.
  using DecodedKernel = VectorKernel<F32Panel<Element>>;
  static constexpr std::int64_t decoded_floats(std::int64_t k) {
    return k * kPanel;
  }

  /// to[k][column] = code * scale, for `k` values from the start of a group.
  static void decode_block(const Weight* b, std::int64_t k, float* to) {
    for (std::int64_t group = 0; group < k; group += kFormat.group, b += kGroupBytes) {
      const Weight* part = b + (kFormat.has_global_scale ? kPanel * 4 : 0);
      for (std::int64_t i = 0; i < kFormat.group; i += kFormat.scale_group, part += kFormat.part_bytes(kPanel)) {
        alignas(64) float scales[kPanel];
        Element::load_scales(part, reinterpret_cast<const float*>(b), scales);
        const Weight* codes = part + kHeadBytes;
        for (std::int64_t j = 0; j < kFormat.scale_group; j += kDepth, codes += kPanel) {
          Vec w[kDepth][kVectors];
          Element::decode(codes, part + kScaleBytes, w);
#pragma GCC unroll 2
          for (int d = 0; d < kDepth; ++d, to += kPanel) {
            Element::store(to, Element::scaled(w[d][0], Element::load(scales)));
            Element::store(to + kLanes, Element::scaled(w[d][1], Element::load(scales + kLanes)));
          }
        }
      }
    }
  }

 private:
  static constexpr std::int64_t kScaleBytes = kPanel * (kFormat.scale == DType::f32 ? 4 : 1);
  static constexpr std::int64_t kHeadBytes = kScaleBytes + (kFormat.has_zero_points ? kPanel : 0);

  [[gnu::always_inline]] static float* address(float* c, int row, int column, int rows) {
    return c + (column / kVectors * rows + row) * kPanel + column % kVectors * kLanes;
  }

  [[gnu::always_inline]] static void fetch_stream(const Weight* codes, std::int64_t distance) {
#pragma GCC unroll 2
    for (std::int64_t byte = 0; byte < kStepBytes; byte += 64)
      _mm_prefetch(reinterpret_cast<const char*>(codes) + distance + byte, _MM_HINT_T0);
  }

  /// The values of k that share their scales.
  template <int Rows, int Panels, bool Stream>
  [[gnu::always_inline]] static void run_part(const Input* a, const Weight* group, const Weight* part,
                                              std::int64_t distance, std::int64_t panel_stride,
                                              Vec (&sum)[Rows][Panels * kVectors], Ahead& ahead) {
    alignas(64) float scales[Panels * kPanel];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p)
      Element::load_scales(part + p * panel_stride, reinterpret_cast<const float*>(group + p * panel_stride),
                           scales + p * kPanel);
    const Weight* codes = part + kHeadBytes;
    for (std::int64_t i = 0; i < kFormat.scale_group; i += kWeightGroup) {
      if constexpr (Stream) {
#pragma GCC unroll 4
        for (int p = 0; p < Panels; ++p) fetch_stream(codes + p * panel_stride, distance);
      } else {
        _mm_prefetch(ahead.weights, _MM_HINT_T1);
        ahead.weights += ahead.weight_step;
      }
#pragma GCC unroll 4
      for (int byte = 0; byte < kBytes; ++byte) {
#pragma GCC unroll 4
        for (int p = 0; p < Panels; ++p) {
          Vec w[kDepth][kVectors];
          Element::decode(codes + p * panel_stride + byte * kPanel, part + p * panel_stride + kScaleBytes, w);
          add_products<Rows, Panels>(a + byte * kDepth * Rows, w, scales + p * kPanel, p, sum);
        }
      }
      codes += kStepBytes;
      a += kWeightGroup * Rows;
    }
  }

  template <int Rows, int Panels>
  [[gnu::always_inline]] static void add_products(const Input* a, Vec (&w)[kDepth][kVectors], const float* scales,
                                                  int panel, Vec (&sum)[Rows][Panels * kVectors]) {
#pragma GCC unroll 2
    for (int d = 0; d < kDepth; ++d) {
      const Vec w0 = Element::scaled(w[d][0], Element::load(scales));
      const Vec w1 = Element::scaled(w[d][1], Element::load(scales + kLanes));
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        const Vec in = Element::broadcast(a + d * Rows + r);
        sum[r][panel * kVectors] = Element::multiply_add(in, w0, sum[r][panel * kVectors]);
        sum[r][panel * kVectors + 1] = Element::multiply_add(in, w1, sum[r][panel * kVectors + 1]);
      }
    }
  }
};

}  // namespace
}  // namespace conclave::experts::grouped
