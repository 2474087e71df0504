// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Integer keys order values as the rule does, and selection finds what a full stable sort finds.
#include "router/selection.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace conclave::router {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(SelectionKey, OrdersAllKindsOfValues) {
  const float ascending[] = {-kInf, -3e38F, -1.0F, -1e-40F, 0.0F, 1e-45F, 1e-38F, 1.0F, 1.0000001F, 3e38F, kInf};
  for (std::size_t i = 0; i + 1 < std::size(ascending); ++i)
    EXPECT_LT(rank_of(ascending[i]), rank_of(ascending[i + 1])) << ascending[i];
  EXPECT_EQ(rank_of(-0.0F), rank_of(0.0F));
  EXPECT_GT(rank_of(-kInf), kMaskedRank);
  EXPECT_LT(kNanRank, kMaskedRank);
  EXPECT_EQ(rank_of(std::numeric_limits<float>::quiet_NaN()), kNanRank);
  EXPECT_EQ(rank_of(-std::numeric_limits<float>::quiet_NaN()), kNanRank);
  EXPECT_GT(selection_key(2.0F, 3), selection_key(2.0F, 4)) << "a tie goes to the lower index";
  EXPECT_EQ(index_of(selection_key(-1.5F, 123456)), 123456);
}

TEST(SelectLargest, FindsWhatAStableSortFinds) {
  std::mt19937 random(3);
  for (const std::int64_t size : {1, 2, 31, 32, 33, 100, 1000})
    for (const std::int64_t count : {1, 2, 31, 32, 33, 64, 1000}) {
      if (count > size) continue;
      std::vector<float> values(static_cast<std::size_t>(size));
      // Few distinct values: mostly ties.
      for (float& v : values) v = static_cast<float>(static_cast<int>(random() % 7)) - 3;
      std::vector<std::int32_t> expected(values.size());
      std::iota(expected.begin(), expected.end(), 0);
      std::stable_sort(expected.begin(), expected.end(), [&](std::int32_t a, std::int32_t b) {
        return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
      });
      std::vector<SelectionKey> keys;
      for (std::int64_t i = 0; i < size; ++i) keys.push_back(selection_key(values[static_cast<std::size_t>(i)], i));
      select_largest(keys.data(), size, count);
      for (std::int64_t k = 0; k < count; ++k)
        ASSERT_EQ(index_of(keys[static_cast<std::size_t>(k)]), expected[static_cast<std::size_t>(k)])
            << size << " " << count;
    }
}

}  // namespace
}  // namespace conclave::router
