// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Counting routed slots over a window of passes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conclave/eplb.hpp"
#include "support/tensors.hpp"

namespace conclave {
namespace {

using ::testing::ElementsAre;

TEST(EplbLoadTest, CountsAWindowOfPasses) {
  EplbLoad load(4, 2);
  load.record(test::tensor_of(DType::i32, {3, 2}, {0, 3, 3, -1, 1, 3}));
  EXPECT_THAT(load.physical(), ElementsAre(1, 1, 0, 3));
  load.record(test::tensor_of(DType::i64, {1, 2}, {2, 2}));  // The same pass, another micro-batch.
  EXPECT_THAT(load.physical(), ElementsAre(1, 1, 2, 3));
  load.next_pass();
  load.record(test::tensor_of(DType::i32, {1, 1}, {0}));
  EXPECT_THAT(load.physical(), ElementsAre(2, 1, 2, 3));
  load.next_pass();  // The first pass leaves.
  EXPECT_THAT(load.physical(), ElementsAre(1, 0, 0, 0));
  load.next_pass();
  EXPECT_THAT(load.physical(), ElementsAre(0, 0, 0, 0));
}

TEST(EplbLoadTest, LeavesPaddingAndStaleIdsOut) {
  EplbLoad load(4, 3);
  load.record(test::tensor_of(DType::i32, {3, 2}, {0, 4, 1, -7, 2, 2}), 2);
  EXPECT_THAT(load.physical(), ElementsAre(1, 1, 0, 0));
  load.record(TensorView(nullptr, DType::i32, {0, 2}));
  EXPECT_THAT(load.physical(), ElementsAre(1, 1, 0, 0));
  load.clear();
  EXPECT_THAT(load.physical(), ElementsAre(0, 0, 0, 0));
}

TEST(EplbLoadTest, AddsReplicasAndRanks) {
  const ExpertPlacement p = make_placement({.num_logical = 3, .num_physical = 4, .num_ranks = 2}, {0, 1, 2, 0});
  const std::vector<std::int64_t> physical{5, 1, 2, 7};
  EXPECT_THAT(logical_load(p, physical), ElementsAre(12, 1, 2));
  run_ranks(2, [&](Communicator& c) {
    const std::vector<std::int64_t> own{5 + c.rank(), 1, 2, 7};
    EXPECT_THAT(logical_load(p, own, c), ElementsAre(25, 2, 4));
  });
}

}  // namespace
}  // namespace conclave
