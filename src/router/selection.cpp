// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: keys. Out: the largest of them, in order, at the front.
#include "router/selection.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

namespace conclave::router {
namespace {

/// Up to this many are taken one by one; longer lists are cheaper to partition and sort.
constexpr std::int64_t kTakenMost = 32;
constexpr std::int64_t kBlocksMost = 64;

/// Four maxima at a time: one alone would wait for itself. No branch depends on the values, because which of them is
/// larger is as good as random, and a wrong guess costs more than the comparison.
SelectionKey largest(const SelectionKey* keys, std::int64_t size) noexcept {
  std::array<SelectionKey, 4> best{};
  std::int64_t i = 0;
  for (; i + 4 <= size; i += 4)
    for (std::size_t j = 0; j < 4; ++j) best[j] = std::max(best[j], keys[i + static_cast<std::int64_t>(j)]);
  for (; i < size; ++i) best[0] = std::max(best[0], keys[i]);
  return std::max(std::max(best[0], best[1]), std::max(best[2], best[3]));
}

/// Blocks of about sqrt(size) keys with their largest beside them: after the first look at every key, each pick looks
/// at one block and at the list of blocks. A key that was taken becomes 0, which no key is.
void take_one_by_one(SelectionKey* keys, std::int64_t size, std::int64_t count) noexcept {
  std::array<SelectionKey, kBlocksMost> block_best;
  std::array<SelectionKey, kTakenMost> taken;
  const auto root = static_cast<std::int64_t>(std::sqrt(static_cast<float>(size)));
  const std::int64_t blocks = std::clamp<std::int64_t>(root, 1, kBlocksMost);
  const std::int64_t block = (size + blocks - 1) / blocks;
  const auto best_of = [&](std::int64_t b) {
    const std::int64_t begin = std::min(b * block, size);
    return largest(keys + begin, std::min(block, size - begin));
  };
  for (std::int64_t b = 0; b < blocks; ++b) block_best[static_cast<std::size_t>(b)] = best_of(b);
  for (std::int64_t k = 0; k < count; ++k) {
    const SelectionKey key = largest(block_best.data(), blocks);
    taken[static_cast<std::size_t>(k)] = key;
    keys[index_of(key)] = 0;
    const std::int64_t b = index_of(key) / block;
    block_best[static_cast<std::size_t>(b)] = best_of(b);
  }
  std::copy_n(taken.begin(), count, keys);
}

}  // namespace

void select_largest(SelectionKey* keys, std::int64_t size, std::int64_t count) noexcept {
  if (count <= kTakenMost) return take_one_by_one(keys, size, count);
  if (count < size) std::nth_element(keys, keys + count, keys + size, std::greater<>());
  std::sort(keys, keys + count, std::greater<>());
}

}  // namespace conclave::router
