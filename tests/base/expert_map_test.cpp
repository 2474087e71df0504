// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Every expert lives on exactly one rank, at the slot that the rule says, also when ranks do not divide experts.
#include "conclave/expert_map.hpp"

#include <gtest/gtest.h>

#include "conclave/error.hpp"

namespace conclave {
namespace {

TEST(ExpertMap, LinearGivesTheFirstRanksOneMore) {
  const ExpertMap map = make_expert_map(10, 4, 1, Placement::linear);
  EXPECT_EQ(map.global_id, (std::vector<std::int32_t>{3, 4, 5}));
  EXPECT_EQ(map.local_slot, (std::vector<std::int32_t>{-1, -1, -1, 0, 1, 2, -1, -1, -1, -1}));
  EXPECT_EQ(make_expert_map(10, 4, 3, Placement::linear).global_id, (std::vector<std::int32_t>{8, 9}));
}

TEST(ExpertMap, RoundRobinStridesByRanks) {
  EXPECT_EQ(make_expert_map(7, 3, 0, Placement::round_robin).global_id, (std::vector<std::int32_t>{0, 3, 6}));
  EXPECT_EQ(make_expert_map(7, 3, 2, Placement::round_robin).global_id, (std::vector<std::int32_t>{2, 5}));
}

TEST(ExpertMap, EveryExpertHasOneOwner) {
  for (Placement placement : {Placement::linear, Placement::round_robin})
    for (std::int64_t experts : {0, 1, 5, 8, 33})
      for (std::int64_t ranks : {1, 2, 3, 8, 40}) {
        std::vector<int> owners(static_cast<std::size_t>(experts), 0);
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          const ExpertMap map = make_expert_map(experts, ranks, rank, placement);
          for (std::size_t slot = 0; slot < map.global_id.size(); ++slot) {
            const auto id = static_cast<std::size_t>(map.global_id[slot]);
            ++owners[id];
            EXPECT_EQ(map.local_slot[id], static_cast<std::int32_t>(slot));
          }
        }
        for (int count : owners) EXPECT_EQ(count, 1) << experts << " experts, " << ranks << " ranks";
      }
}

TEST(ExpertMap, RoundRobinPhysicalOrderIsAPermutationByOwner) {
  EXPECT_EQ(round_robin_global_to_physical(7, 3), (std::vector<std::int32_t>{0, 3, 5, 1, 4, 6, 2}));
}

TEST(ExpertMap, RefusesBadRanks) {
  EXPECT_THROW(make_expert_map(4, 2, 2, Placement::linear), Error);
  EXPECT_THROW(make_expert_map(4, 0, 0, Placement::linear), Error);
}

}  // namespace
}  // namespace conclave
