// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// bf16 by tdpbf16ps: 16 x 16 sums of 16 pairs of k each. Tiles of 32 rows x 32 columns keep four sums and load two
// tiles of inputs and two of weights for them, which is as much as eight tile registers allow. AMX runs for one row as
// it does for 32: a vector kernel for few rows would add in another order, and a row would depend on its batch.
#include "experts/cpu/simd_avx512.hpp"
#include "experts/cpu/vector_part.hpp"

namespace conclave::experts::grouped {
namespace {

/// The operand of ldtilecfg: palette 1 has 8 tiles of up to 16 rows of 64 bytes. Tiles 0-3 hold sums, 4 inputs, 5
/// inputs or weights, 6 and 7 weights. `rows` is that of sums and inputs: fewer than 16 where one tile is all there is,
/// so that decode loads one row and not sixteen.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

struct TileConfigs {
  TileConfig for_rows[17];

  constexpr TileConfigs() : for_rows() {
    for (int n = 1; n <= 16; ++n)
      for (int tile = 0; tile <= 4; ++tile) for_rows[n].rows[tile] = static_cast<std::uint8_t>(n);
  }
};

/// The intrinsics for tiles do not tell the compiler which memory they read.
[[gnu::always_inline]] inline void fence() {
  asm volatile("" ::: "memory");
}

struct AmxKernel {
  using Input = std::uint16_t;
  using Weight = std::uint16_t;
  static constexpr int kVectors = 2;
  static constexpr int kPanel = 32;
  static constexpr int kWeightGroup = 2;
  /// 32 values of k of a row are one row of a tile, so a tile of inputs is 1 KiB without gaps. Tiles loaded straight
  /// from rows would have 16 lines a power of two apart, which a cache of 8 or 12 ways cannot hold together.
  static constexpr int kInputGroup = 32;
  static constexpr std::int64_t offset(std::int64_t k) { return k * kPanel; }
  static constexpr std::int64_t kRowBytes = 64;
  static constexpr std::int64_t kPairBytes = kPanel * 4;  ///< From one pair of k to the next in a panel.
  static constexpr std::int64_t kStepBytes = 16 * kPairBytes;

  /// The tile unit costs power and context switches while it is configured: from a task's first tile to its last.
  struct Session {
    /// `rows`: of the only tile of the task; more than 16 where there are several.
    explicit Session(std::int64_t rows) {
      // Static: the intrinsic declares that it reads eight bytes, so stores to the rest of a local could be dropped.
      static constexpr TileConfigs kConfigs;
      _tile_loadconfig(&kConfigs.for_rows[rows < 16 ? rows : 16]);
    }
    ~Session() { _tile_release(); }
  };

  /// One panel is one stream with 4 KiB under way; two panels side by side were 15 % slower.
  static constexpr int streams(int /*rows*/) { return 1; }

  template <int Rows, int Panels, bool Stream>
  static void multiply(const Input* a, const Weight* b, std::int64_t /*panel_stride*/, std::int64_t k, float* c,
                       bool accumulate, Ahead ahead) {
    fence();
    const auto* w = reinterpret_cast<const char*>(b);
    if constexpr (Rows == 32) {
      rows32<Stream>(a, w, k, c, accumulate, ahead);
    } else {
      rows16<Stream>(a, w, k, c, accumulate, ahead);
    }
    fence();
  }

 private:
  static constexpr std::int64_t kSumStride = kPanel * 4;
  static constexpr std::int64_t kSumTile = 16 * kPanel;

  /// One quarter of what the step after the next loads, into L1: nothing fetches ahead of tile loads by itself. Two
  /// steps are 128 cycles of products for 32 rows, enough for L2, and with weights that stream, 4 KiB under way.
  template <int Quarter>
  [[gnu::always_inline]] static void fetch(const char* p) {
#pragma GCC unroll 8
    for (std::int64_t line = 8 * Quarter; line < 8 * Quarter + 8; ++line)
      _mm_prefetch(p + 2 * kStepBytes + line * 64, _MM_HINT_T0);
  }
  [[gnu::always_inline]] static void fetch(Ahead& ahead) {
    for (std::int64_t byte = 0; byte < ahead.weight_step; byte += 64) _mm_prefetch(ahead.weights + byte, _MM_HINT_T1);
    for (std::int64_t byte = 0; byte < ahead.input_step; byte += 64) _mm_prefetch(ahead.inputs + byte, _MM_HINT_T1);
    ahead.weights += ahead.weight_step;
    ahead.inputs += ahead.input_step;
  }

  /// Fetches between the products: in one burst they would hold up the loads.
  template <bool Stream>
  static void rows32(const Input* a, const char* w, std::int64_t k, float* c, bool accumulate, Ahead ahead) {
    if (accumulate) {
      _tile_loadd(0, c, kSumStride);
      _tile_loadd(1, c + 16, kSumStride);
      _tile_loadd(2, c + kSumTile, kSumStride);
      _tile_loadd(3, c + kSumTile + 16, kSumStride);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    const auto* x = reinterpret_cast<const char*>(a);
    static_assert(32 * kRowBytes == kStepBytes, "a step loads as much of the inputs as of the weights");
    for (std::int64_t i = 0; i < k; i += kInputGroup, x += kStepBytes, w += kStepBytes) {
      _tile_loadd(6, w, kPairBytes);
      _tile_loadd(4, x, kRowBytes);
      fetch<0>(x);
      fetch<0>(w);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, w + kRowBytes, kPairBytes);
      fetch<1>(x);
      fetch<1>(w);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, x + 16 * kRowBytes, kRowBytes);
      fetch<2>(x);
      fetch<2>(w);
      _tile_dpbf16ps(2, 5, 6);
      fetch<3>(x);
      fetch<3>(w);
      if constexpr (!Stream) fetch(ahead);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, kSumStride);
    _tile_stored(1, c + 16, kSumStride);
    _tile_stored(2, c + kSumTile, kSumStride);
    _tile_stored(3, c + kSumTile + 16, kSumStride);
  }

  template <bool Stream>
  static void rows16(const Input* a, const char* w, std::int64_t k, float* c, bool accumulate, Ahead ahead) {
    if (accumulate) {
      _tile_loadd(0, c, kSumStride);
      _tile_loadd(1, c + 16, kSumStride);
    } else {
      _tile_zero(0);
      _tile_zero(1);
    }
    for (std::int64_t i = 0; i < k; i += kInputGroup, a += 16 * kInputGroup, w += kStepBytes) {
      fetch<0>(w);
      fetch<1>(w);
      fetch<2>(w);
      fetch<3>(w);
      if constexpr (!Stream) fetch(ahead);
      _tile_loadd(4, a, kRowBytes);
      _tile_loadd(6, w, kPairBytes);
      _tile_loadd(7, w + kRowBytes, kPairBytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, c, kSumStride);
    _tile_stored(1, c + 16, kSumStride);
  }
};

struct Bf16Amx : Avx512 {
  using Simd = Avx512;
  using Kernel = AmxKernel;
  using Source = std::uint16_t;
  static constexpr std::int64_t kRowTile = 32;
  static constexpr std::int64_t kRowQuantum = 16;
  static constexpr std::int64_t kStep = 32;
  /// 32 KiB of one panel in an L1 of 48 KiB; the sums of a tile move to memory and back once for 16 steps.
  static constexpr std::int64_t kBlock = 512;
  /// 256 rows: 256 KiB for a block of k, in an L2 of 2 MiB. The unit is so fast that fewer rows for each read of the
  /// weights would leave it waiting for DRAM.
  static constexpr std::int64_t kBlockTiles = 8;
  static constexpr std::int64_t kSumTiles = 64;

  static void store_source(Source* p, Vec v) { store_bf16(p, v); }
  static void store_input(Source* p, Vec v) { store_bf16(p, v); }
};

}  // namespace

extern constinit const Engine kBf16Amx =
    make_engine<Bf16Amx>({"experts/cpu_bf16_amx", "AMX, bf16 products", &CpuFeatures::amx_bf16,
                          "AMX-BF16, or the system does not grant it", DType::bf16});

}  // namespace conclave::experts::grouped
