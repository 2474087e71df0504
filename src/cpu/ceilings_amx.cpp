// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Out: bf16 products of whole tiles (tdpbf16ps): 16 x 16 sums of 32 products each.
#include <immintrin.h>

#include "cpu/ceilings.hpp"
#include "cpu/variants.hpp"

namespace conclave::cpu {
namespace {

/// The operand of ldtilecfg: palette 1 has 8 tiles of up to 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

}  // namespace

/// Tiles 0-3 hold sums, 4-7 operands: as the 2 x 2 blocks of a product use them.
void multiply_add_bf16_amx(std::int64_t iterations) {
  // Static: the intrinsic declares that it reads eight bytes, so that stores to the rest of a local would be dropped.
  static constexpr TileConfig kConfig;
  _tile_loadconfig(&kConfig);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (std::int64_t n = 0; n < iterations; ++n) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}

}  // namespace conclave::cpu
