// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Regions grow until locked and never move each other; an arena measures exactly what it will take.
#include "conclave/workspace.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "conclave/error.hpp"

namespace conclave {
namespace {

using ::testing::HasSubstr;

TEST(Workspace, GrowsUntilLockedThenNamesTheCaller) {
  Workspace workspace;
  EXPECT_GE(workspace.region({}, 1000).size(), 1000U);
  workspace.lock();
  EXPECT_GE(workspace.region({}, 900).size(), 900U);
  try {
    workspace.region({}, 5000);
    FAIL() << "grew while locked";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::out_of_memory);
    EXPECT_THAT(e.what(), HasSubstr("5000"));
    EXPECT_THAT(e.what(), HasSubstr("1000"));
    EXPECT_THAT(e.what(), HasSubstr("workspace_test.cpp"));
  }
  workspace.unlock();
  EXPECT_GE(workspace.region({}, 5000).size(), 5000U);
}

TEST(Workspace, GrowingOneSlotLeavesTheOthersInPlace) {
  Workspace workspace;
  std::byte* first = workspace.region({0, 0}, 4096).data();
  for (int batch = 1; batch < 8; ++batch) workspace.region({batch, 1}, 1 << 16);
  EXPECT_EQ(workspace.region({0, 0}, 4096).data(), first);
  EXPECT_EQ(workspace.bytes(), 4096 + 7 * (1 << 16));
}

TEST(Workspace, PoisonFillsWithNaN) {
  Workspace workspace;
  auto region = workspace.region({}, 256);
  workspace.poison();
  for (std::byte b : region) ASSERT_EQ(b, std::byte{0xFF});
}

TEST(Arena, MeasuresWhatItTakes) {
  const auto take_all = [](Arena& arena) {
    arena.take(DType::f32, {3, 5});
    const std::int64_t mark = arena.mark();
    arena.take(DType::u8, {1000});
    arena.release(mark);
    arena.take(DType::bf16, {7});
  };
  Arena measuring = Arena::measuring();
  take_all(measuring);
  EXPECT_EQ(measuring.used(), 512);
  EXPECT_EQ(measuring.peak(), 256 + 1024);
  Workspace workspace;
  Arena arena(workspace.region({}, measuring.peak()), {});
  take_all(arena);
  EXPECT_EQ(arena.peak(), measuring.peak());
}

TEST(Arena, AlignsAndRefusesToOverflow) {
  Workspace workspace;
  Arena arena(workspace.region({}, 512), {});
  arena.take(DType::u8, {1});
  const TensorView second = arena.take(DType::u8, {1});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(second.data) % kWorkspaceAlignment, 0U);
  EXPECT_THROW(arena.take(DType::u8, {1}), Error);
}

TEST(Arena, EmptyTensorsTakeNothing) {
  Arena arena({}, {});
  EXPECT_EQ(arena.take(DType::f32, {0, 128}).numel(), 0);
  EXPECT_EQ(arena.used(), 0);
}

}  // namespace
}  // namespace conclave
