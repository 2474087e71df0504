// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Pages that are discarded really leave the process, and only whole pages inside the range do.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "conclave/error.hpp"
#include "conclave/tensor.hpp"

namespace conclave {
namespace {

std::int64_t resident_bytes() {
  std::int64_t total = 0;
  std::int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(Storage, DiscardGivesMemoryBack) {
  constexpr std::int64_t kBytes = std::int64_t{64} << 20;
  Storage storage(kBytes);
  std::memset(storage.data(), 1, static_cast<std::size_t>(kBytes));
  const std::int64_t before = resident_bytes();
  storage.discard(storage.data(), kBytes);
  EXPECT_LT(resident_bytes(), before - kBytes * 9 / 10);
  EXPECT_EQ(storage.data()[kBytes / 2], std::byte{0});
}

TEST(Storage, DiscardKeepsPartialPages) {
  const auto page = static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
  Storage storage(3 * page);
  std::memset(storage.data(), 7, static_cast<std::size_t>(3 * page));
  storage.discard(storage.data() + 1, 2 * page - 2);
  EXPECT_EQ(storage.data()[0], std::byte{7});
  EXPECT_EQ(storage.data()[page], std::byte{7});
  storage.discard(storage.data() + 1, 2 * page);
  EXPECT_EQ(storage.data()[page], std::byte{0});
  EXPECT_EQ(storage.data()[2 * page], std::byte{7});
}

TEST(Storage, DiscardIgnoresForeignMemory) {
  Storage storage(100);
  std::vector<char> other(1 << 16, 'x');
  storage.discard(other.data(), static_cast<std::int64_t>(other.size()));
  for (char c : other) ASSERT_EQ(c, 'x');
}

TEST(Storage, RefusesNegativeAndImpossibleSizes) {
  EXPECT_THROW(Storage(-1), Error);
  EXPECT_THROW(Storage(std::int64_t{1} << 60), Error);
  EXPECT_EQ(Storage(0).bytes(), 0);
}

}  // namespace
}  // namespace conclave
