// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Shares that cover a range exactly once, whatever its length, and a barrier that separates phases.
#include "cpu/parallel_for.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace conclave::cpu {
namespace {

TEST(StaticShare, CoversTheRangeOnceInOrderAndInWholeUnits) {
  for (const std::int64_t count : {0, 1, 7, 8, 63, 64, 65, 1000})
    for (const int parts : {1, 2, 3, 16})
      for (const std::int64_t unit : {1, 8, 13}) {
        std::int64_t next = 0, least = count, most = 0;
        for (int part = 0; part < parts; ++part) {
          const Range r = static_share(count, parts, part, unit);
          ASSERT_EQ(r.begin, next);
          ASSERT_LE(r.begin, r.end);
          ASSERT_TRUE(r.end == count || r.end % unit == 0);
          least = std::min(least, r.size());
          most = std::max(most, r.size());
          next = r.end;
        }
        ASSERT_EQ(next, count);
        ASSERT_LE(most - least, 2 * unit - 1) << count << " in " << parts << " by " << unit;
      }
}

TEST(StaticShare, StaysExactBeyond32Bits) {
  const std::int64_t count = (std::int64_t{1} << 40) + 5;
  EXPECT_EQ(static_share(count, 3, 2).end, count);
  EXPECT_EQ(static_share(count, 3, 0).end, static_share(count, 3, 1).begin);
}

class ParallelForTest : public testing::TestWithParam<int> {
 protected:
  std::unique_ptr<Executor> executor_ = make_executor(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Threads, ParallelForTest, testing::Values(1, 2, 5));

TEST_P(ParallelForTest, VisitsEveryItemOnce) {
  for (const std::int64_t count : {0, 1, 4, 5, 997}) {
    std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
    const auto visit = [&](std::int64_t begin, std::int64_t end, int thread) {
      ASSERT_LT(begin, end);
      ASSERT_LT(thread, GetParam());
      for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
    };
    parallel_for(*executor_, count, 4, visit);
    parallel_for_dynamic(*executor_, count, 3, visit);
    for (const auto& v : visits) ASSERT_EQ(v.load(), 2);
  }
}

TEST_P(ParallelForTest, SmallLoopsStayOnTheCaller) {
  int calls = 0;
  parallel_for(*executor_, 10, 10, [&](std::int64_t begin, std::int64_t end, int thread) {
    ++calls;
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 10);
    EXPECT_EQ(thread, 0);
  });
  EXPECT_EQ(calls, 1);
}

TEST_P(ParallelForTest, BarrierSeparatesPhases) {
  const int threads = GetParam();
  constexpr int kPhases = 200;
  Barrier barrier(threads);
  std::vector<int> at(static_cast<std::size_t>(threads), 0);  // Plain ints: a thread sanitizer sees a leaky barrier.
  std::atomic<int> mismatches{0};
  executor_->parallel([&](int thread) {
    for (int phase = 1; phase <= kPhases; ++phase) {
      at[static_cast<std::size_t>(thread)] = phase;
      barrier.arrive_and_wait();
      for (const int other : at) mismatches += other == phase ? 0 : 1;
      barrier.arrive_and_wait();
    }
  });
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_P(ParallelForTest, CounterCanBeReusedBetweenBarriers) {
  WorkCounter counter;
  Barrier barrier(GetParam());
  std::atomic<std::int64_t> sum{0};
  executor_->parallel([&](int thread) {
    for (int phase = 0; phase < 5; ++phase) {
      for (Range r = counter.take(101, 7); r.size() > 0; r = counter.take(101, 7)) sum += r.size();
      barrier.arrive_and_wait();
      if (thread == 0) counter.reset();
      barrier.arrive_and_wait();
    }
  });
  EXPECT_EQ(sum.load(), 5 * 101);
}

}  // namespace
}  // namespace conclave::cpu
