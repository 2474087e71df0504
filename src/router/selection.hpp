// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The order of the rule as one integer: larger value first, ties to the lower index, NaN behind every number. Equal
// keys do not exist, so any way of selecting gives the same answer.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace conclave::router {

/// Value in the high half, complement of the index in the low half.
using SelectionKey = std::uint64_t;

/// Of the high half: numbers from -inf (0x007FFFFF) up, below them experts of groups that lost, below them NaN.
inline constexpr std::uint32_t kMaskedRank = 1;
inline constexpr std::uint32_t kNanRank = 0;

inline std::uint32_t rank_of(float value) noexcept {
  // + 0 makes -0 and 0 the same value. Negative floats, all bits flipped, grow as integers; positive ones, with the
  // sign bit set, lie above them all. Without a branch: signs are as good as random.
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value + 0.0F);
  const std::uint32_t all_if_negative = 0U - (bits >> 31);
  const std::uint32_t rank = bits ^ (all_if_negative | 0x80000000U);
  return std::isnan(value) ? kNanRank : rank;
}

inline SelectionKey selection_key(std::uint32_t rank, std::int64_t index) noexcept {
  return (static_cast<SelectionKey>(rank) << 32) | (0xFFFFFFFFU - static_cast<std::uint32_t>(index));
}
inline SelectionKey selection_key(float value, std::int64_t index) noexcept {
  return selection_key(rank_of(value), index);
}
inline std::uint32_t rank_of(SelectionKey key) noexcept {
  return static_cast<std::uint32_t>(key >> 32);
}
inline std::int32_t index_of(SelectionKey key) noexcept {
  return static_cast<std::int32_t>(0xFFFFFFFFU - static_cast<std::uint32_t>(key));
}

/// Puts the `count` largest of keys[0, size) to the front, descending; what is behind them is lost. keys[i] is the key
/// of index i. Never allocates.
void select_largest(SelectionKey* keys, std::int64_t size, std::int64_t count) noexcept;

}  // namespace conclave::router
