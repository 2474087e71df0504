// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: keys. Out: the largest of them, in order, at the front.
#include "router/selection.hpp"

#include <algorithm>
#include <functional>

namespace conclave::router {
namespace {

/// Up to this many, the chosen are kept sorted by insertion: after the first few keys most fail one comparison. Longer
/// lists would move too much.
constexpr std::int64_t kInsertionMost = 32;

void insert_sorted(SelectionKey* keys, std::int64_t size, std::int64_t count) noexcept {
  std::int64_t held = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    const SelectionKey key = keys[i];
    if (held == count && key < keys[held - 1]) continue;
    // keys[i] was read, so slot `held` <= i is free to be overwritten.
    std::int64_t at = held < count ? held++ : held - 1;
    for (; at > 0 && keys[at - 1] < key; --at) keys[at] = keys[at - 1];
    keys[at] = key;
  }
}

}  // namespace

void select_largest(SelectionKey* keys, std::int64_t size, std::int64_t count) noexcept {
  if (count <= kInsertionMost) return insert_sorted(keys, size, count);
  if (count < size) std::nth_element(keys, keys + count, keys + size, std::greater<>());
  std::sort(keys, keys + count, std::greater<>());
}

}  // namespace conclave::router
