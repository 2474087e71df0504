// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The collectives, on simulated ranks: what each rank gets, and in which order sums are made.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "conclave/comm.hpp"
#include "conclave/error.hpp"

namespace conclave {
namespace {

constexpr int kSizes[] = {1, 2, 3, 4, 8};

using Ints = std::vector<std::int64_t>;

std::int64_t bytes(std::int64_t count) {
  return count * static_cast<std::int64_t>(sizeof(std::int64_t));
}

TEST(Communicator, AllGatherOrdersByRank) {
  for (int size : kSizes)
    run_ranks(size, [&](Communicator& c) {
      const Ints mine = {c.rank(), 10 * c.rank()};
      Ints all(static_cast<std::size_t>(2 * size), -1);
      c.all_gather(mine.data(), bytes(2), all.data());
      for (int r = 0; r < size; ++r) {
        EXPECT_EQ(all[static_cast<std::size_t>(2 * r)], r);
        EXPECT_EQ(all[static_cast<std::size_t>(2 * r + 1)], 10 * r);
      }
    });
}

/// Rank r brings r elements: rank 0 none, with a null pointer.
TEST(Communicator, AllGatherOfVaryingCounts) {
  for (int size : kSizes)
    run_ranks(size, [&](Communicator& c) {
      Ints counts, expected;
      for (int r = 0; r < size; ++r) {
        counts.push_back(bytes(r));
        for (int i = 0; i < r; ++i) expected.push_back(100 * r + i);
      }
      Ints mine;
      for (int i = 0; i < c.rank(); ++i) mine.push_back(100 * c.rank() + i);
      Ints all(expected.size(), -1);
      c.start_all_gather(mine.empty() ? nullptr : mine.data(), all.data(), counts).wait();
      EXPECT_EQ(all, expected);
    });
}

TEST(Communicator, AllToAllTransposes) {
  for (int size : kSizes)
    run_ranks(size, [&](Communicator& c) {
      Ints send(static_cast<std::size_t>(size)), receive(static_cast<std::size_t>(size), -1);
      for (int r = 0; r < size; ++r) send[static_cast<std::size_t>(r)] = 100 * c.rank() + r;
      c.all_to_all(send.data(), receive.data(), bytes(1));
      for (int r = 0; r < size; ++r) EXPECT_EQ(receive[static_cast<std::size_t>(r)], 100 * r + c.rank());
    });
}

/// (a * b) mod 3 elements from a to b: pairs with nothing to say, and different amounts in the two directions.
TEST(Communicator, AllToAllOfVaryingCounts) {
  const auto count = [](int from, int to) { return std::int64_t{(from + 2 * to) % 3}; };
  for (int size : kSizes)
    run_ranks(size, [&](Communicator& c) {
      Ints send, send_bytes, receive_bytes, expected;
      for (int r = 0; r < size; ++r) {
        send_bytes.push_back(bytes(count(c.rank(), r)));
        receive_bytes.push_back(bytes(count(r, c.rank())));
        for (std::int64_t i = 0; i < count(c.rank(), r); ++i) send.push_back(1000 * c.rank() + 10 * r + i);
        for (std::int64_t i = 0; i < count(r, c.rank()); ++i) expected.push_back(1000 * r + 10 * c.rank() + i);
      }
      Ints receive(expected.size(), -1);
      c.start_all_to_all(send.data(), send_bytes, receive.data(), receive_bytes).wait();
      EXPECT_EQ(receive, expected);
    });
}

/// Terms of very different sizes, so that another order of the sum has other bits.
float term(int rank, std::int64_t i) {
  const float scale[] = {1e8f, 1.0f, -1e8f, 3e-3f, 7.0f};
  return scale[static_cast<std::size_t>(rank + i) % 5] * (1.0f + 0.1f * static_cast<float>(rank));
}
float ordered_sum(int size, std::int64_t i) {
  float sum = term(0, i);
  for (int r = 1; r < size; ++r) sum += term(r, i);
  return sum;
}

TEST(Communicator, AllReduceAddsInRankOrder) {
  for (int size : kSizes)
    for (std::int64_t count : {0, 1, 5, 64, 67})
      run_ranks(size, [&](Communicator& c) {
        std::vector<float> data(static_cast<std::size_t>(count));
        for (std::int64_t i = 0; i < count; ++i) data[static_cast<std::size_t>(i)] = term(c.rank(), i);
        std::vector<float> scratch(static_cast<std::size_t>(c.all_reduce_scratch(count)));
        c.all_reduce(data.data(), count, scratch.data());
        for (std::int64_t i = 0; i < count; ++i) EXPECT_EQ(data[static_cast<std::size_t>(i)], ordered_sum(size, i));
      });
}

TEST(Communicator, ReduceScatterAddsInRankOrder) {
  for (int size : kSizes)
    run_ranks(size, [&](Communicator& c) {
      Ints counts;
      for (int r = 0; r < size; ++r) counts.push_back((3 * r) % 5);
      const std::int64_t all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
      const std::int64_t own = counts[static_cast<std::size_t>(c.rank())];
      const std::int64_t first = std::accumulate(counts.begin(), counts.begin() + c.rank(), std::int64_t{0});
      std::vector<float> send(static_cast<std::size_t>(all)), sum(static_cast<std::size_t>(own));
      for (std::int64_t i = 0; i < all; ++i) send[static_cast<std::size_t>(i)] = term(c.rank(), i);
      std::vector<float> scratch(static_cast<std::size_t>(own * size));
      c.reduce_scatter(send.data(), counts, sum.data(), scratch.data());
      for (std::int64_t i = 0; i < own; ++i) EXPECT_EQ(sum[static_cast<std::size_t>(i)], ordered_sum(size, first + i));
    });
}

TEST(Communicator, CountsThatDoNotFitTheRanksAreRefused) {
  run_ranks(2, [&](Communicator& c) {
    const Ints one = {0};
    EXPECT_THROW(c.start_all_gather(nullptr, nullptr, one), Error);
    EXPECT_THROW(c.start({"exchange", {}, {}}), Error);
    EXPECT_THROW(c.barrier(Communicator::kMaxChannels), Error);
  });
}

}  // namespace
}  // namespace conclave
