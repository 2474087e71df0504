// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Pending: hook before finish, each once; captured state lives and dies with it.
#include "conclave/pending.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <type_traits>

namespace conclave {
namespace {

TEST(Pending, FinishesOnce) {
  Pending<int> pending([] { return 7; });
  EXPECT_FALSE(pending.has_hook());
  EXPECT_THROW(pending.hook(), Error);
  EXPECT_EQ(pending.finish(), 7);
  EXPECT_THROW(pending.finish(), Error);
}

TEST(Pending, HookComesFirstAndOnce) {
  int arrived = 0;
  Pending<int> pending([&] { ++arrived; }, [&] { return arrived; });
  EXPECT_THROW(pending.finish(), Error);
  pending.hook();
  EXPECT_THROW(pending.hook(), Error);
  EXPECT_EQ(pending.finish(), 1);
}

TEST(Pending, OwnsWhatItCaptured) {
  auto value = std::make_shared<int>(3);
  {
    Pending<int> pending([value] { return *value; });
    EXPECT_EQ(value.use_count(), 2);
    Pending<int> moved = std::move(pending);
    EXPECT_EQ(value.use_count(), 2);
    EXPECT_EQ(moved.finish(), 3);
  }
  EXPECT_EQ(value.use_count(), 1);
  static_assert(!std::is_copy_constructible_v<Pending<int>>);
}

}  // namespace
}  // namespace conclave
