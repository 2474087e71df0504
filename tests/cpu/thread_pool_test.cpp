// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The executors: every thread called once, exceptions, nesting, reuse after failure, more threads than cores.
#include "cpu/thread_pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "conclave/error.hpp"
#include "cpu/features.hpp"

namespace conclave {
namespace {

class ExecutorTest : public testing::TestWithParam<int> {
 protected:
  std::unique_ptr<Executor> executor_ = make_executor(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Threads, ExecutorTest, testing::Values(1, 2, 3, 7));

TEST_P(ExecutorTest, CallsEachThreadExactlyOnceInEveryRegion) {
  ASSERT_EQ(executor_->num_threads(), GetParam());
  std::vector<int> calls(static_cast<std::size_t>(GetParam()));
  for (int region = 1; region <= 300; ++region) {
    executor_->parallel([&](int thread) { ++calls.at(static_cast<std::size_t>(thread)); });
    for (const int count : calls) ASSERT_EQ(count, region);
  }
}

TEST_P(ExecutorTest, CallerIsThreadZero) {
  std::thread::id zero;
  executor_->parallel([&](int thread) {
    if (thread == 0) zero = std::this_thread::get_id();
  });
  EXPECT_EQ(zero, std::this_thread::get_id());
}

TEST_P(ExecutorTest, RethrowsTheErrorOfAnyThreadAndStaysUsable) {
  for (int bad = 0; bad < GetParam(); ++bad) {
    std::atomic<int> finished{0};
    try {
      executor_->parallel([&](int thread) {
        if (thread == bad) throw std::out_of_range(std::to_string(thread));
        ++finished;
      });
      FAIL() << "expected an exception";
    } catch (const std::out_of_range& e) {
      EXPECT_EQ(e.what(), std::to_string(bad));
    }
    EXPECT_EQ(finished.load(), GetParam() - 1) << "returned before the others had finished";
  }
  std::atomic<int> calls{0};
  executor_->parallel([&](int) { ++calls; });
  EXPECT_EQ(calls.load(), GetParam());
}

TEST_P(ExecutorTest, ThrowsOneOfManyErrors) {
  EXPECT_THROW(executor_->parallel([](int) { throw std::runtime_error("each"); }), std::runtime_error);
  EXPECT_NO_THROW(executor_->parallel([](int) {}));
}

TEST_P(ExecutorTest, RefusesNestingFromEveryThread) {
  std::atomic<int> refusals{0};
  executor_->parallel([&](int) {
    try {
      executor_->parallel([](int) {});
    } catch (const Error& e) {
      refusals += e.kind() == ErrorKind::invalid_argument ? 1 : 0;
    }
  });
  EXPECT_EQ(refusals.load(), GetParam());
}

TEST_P(ExecutorTest, WorksAfterItsThreadsFellAsleep) {
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> calls{0};
    executor_->parallel([&](int thread) {
      // The others must wait for a slow one, asleep if need be.
      if (thread == GetParam() - 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ++calls;
    });
    ASSERT_EQ(calls.load(), GetParam());
  }
}

TEST(MakeExecutor, TakesEveryAvailableCpuForZero) {
  EXPECT_EQ(make_executor()->num_threads(), cpu::available_cpus());
  EXPECT_EQ(make_executor(0)->num_threads(), cpu::available_cpus());
}

TEST(MakeExecutor, RefusesNegativeCounts) {
  try {
    make_executor(-3);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("-3"), std::string::npos);
  }
}

TEST(MakeExecutor, CanBeDestroyedUnused) {
  for (int i = 0; i < 20; ++i) make_executor(3);
}

TEST(MakeInlineExecutor, RunsOnTheCaller) {
  const auto executor = make_inline_executor();
  ASSERT_EQ(executor->num_threads(), 1);
  std::thread::id seen;
  executor->parallel([&](int) { seen = std::this_thread::get_id(); });
  EXPECT_EQ(seen, std::this_thread::get_id());
}

}  // namespace
}  // namespace conclave
