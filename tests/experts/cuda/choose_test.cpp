// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// choose() over models and token counts, without a GPU: tiles that exist, that cover what an expert gets, and that are
// narrow where weights are all that counts.
#include "experts/cuda/choose.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

namespace conclave::experts::cuda {
namespace {

constexpr std::array kModels = {
    GemmProblem{.num_experts = 64, .top_k = 8, .hidden_size = 2048, .intermediate_size = 1024},
    GemmProblem{.num_experts = 128, .top_k = 8, .hidden_size = 2048, .intermediate_size = 768},
    GemmProblem{.num_experts = 8, .top_k = 2, .hidden_size = 4096, .intermediate_size = 14336},
    GemmProblem{.num_experts = 128, .top_k = 4, .hidden_size = 2880, .intermediate_size = 2880},
    GemmProblem{.num_experts = 256, .top_k = 8, .hidden_size = 7168, .intermediate_size = 2048},
    GemmProblem{.num_experts = 1, .top_k = 1, .hidden_size = 8, .intermediate_size = 8},
};
constexpr std::array<GemmTile, 8> kCompiled = {GemmTile{8, 64, 1},    GemmTile{8, 128, 1},        GemmTile{16, 128, 1},
                                               GemmTile{32, 128, 1},  GemmTile{64, 128, 1},       GemmTile{128, 128, 1},
                                               GemmTile{128, 256, 1}, GemmTile{128, 256, 2, true}};

bool is_compiled(const GemmChoice& choice, const GemmTile& tile) {
  // Pairs of blocks whose tokens are columns exist for sorted rows alone.
  if (choice.sorts_rows) return tile == GemmTile{128, 192, 2};
  return std::find(kCompiled.begin(), kCompiled.end(), tile) != kCompiled.end();
}

TEST(Choose, RowsOfAnActiveExpertFollowUniformRouting) {
  const GemmProblem p = kModels[0];
  EXPECT_DOUBLE_EQ(rows_per_active_expert(p, 0), 0);
  EXPECT_DOUBLE_EQ(rows_per_active_expert(p, 1), 1);
  EXPECT_NEAR(rows_per_active_expert(p, 1024), 128, 1e-9);
  // 64 (1 - (7/8)^8) = 42.01 experts share 64 rows.
  EXPECT_NEAR(rows_per_active_expert(p, 8), 64 / 42.0092, 1e-3);
}

TEST(Choose, EveryTokenCountGetsCompiledTilesThatShareAMap) {
  for (const GemmProblem& p : kModels)
    for (std::int64_t m = 1; m <= 131072; m = m < 64 ? m + 1 : m * 3 / 2) {
      const GemmChoice choice = choose(p, m);
      EXPECT_TRUE(is_compiled(choice, choice.tile)) << m << " tokens: " << to_string(choice);
      EXPECT_TRUE(is_compiled(choice, choice.second)) << m << " tokens: " << to_string(choice);
      EXPECT_EQ(choice.tile.map_rows(), choice.second.map_rows()) << m << " tokens";
    }
}

TEST(Choose, ATileIsAsWideAsAnExpertsRowsAndNoWiderThanNeeded) {
  for (const GemmProblem& p : kModels)
    for (std::int64_t m = 1; m <= 16384; m *= 2) {
      const double rows = rows_per_active_expert(p, m);
      const int tokens = choose(p, m).tile.tokens;
      if (rows <= 90) {
        EXPECT_GE(tokens, rows) << m;
      }
      if (tokens > 8) {
        EXPECT_LE(tokens, 5 * rows) << m;
      }
    }
}

TEST(Choose, SortingIsMonotoneInTheTokens) {
  // The buffers of a layer are those of its largest batch.
  for (const GemmProblem& p : kModels) {
    bool sorts = false;
    for (std::int64_t m = 1; m <= 131072; m *= 2) {
      const bool now = choose(p, m).sorts_rows;
      EXPECT_TRUE(now || !sorts) << m;
      sorts = now;
    }
  }
}

TEST(Choose, FewTilesAreCutUntilTheyFillTheDevice) {
  // Two experts of Mixtral: 64 tiles of 128 rows in GEMM2 for 132 multiprocessors, 448 in GEMM1.
  const GemmChoice one = choose(kModels[2], 1);
  EXPECT_EQ(one.tile.weight_rows, 128);
  EXPECT_EQ(one.second.weight_rows, 64);
  GemmProblem small = kModels[2];
  small.num_multiprocessors = 60;
  EXPECT_EQ(choose(small, 1).second.weight_rows, 128);
}

TEST(Choose, TokensAreRowsWhereTilesAreFull) {
  const GemmProblem olmoe = kModels[0];
  EXPECT_FALSE(choose(olmoe, 4096).tile.token_rows);
  EXPECT_TRUE(choose(olmoe, 16384).tile.token_rows);
  EXPECT_EQ(to_string(choose(olmoe, 16384)), "128 tokens x 256 weight rows, tokens as rows, pairs of blocks, gathered");
}

TEST(Choose, RareActivationsStayOnNarrowTiles) {
  GemmProblem p = kModels[2];
  p.common_activation = false;
  for (std::int64_t m = 1; m <= 16384; m *= 4) {
    EXPECT_LE(choose(p, m).tile.tokens, 64) << m;
    EXPECT_FALSE(choose(p, m).sorts_rows) << m;
    EXPECT_FALSE(choose(p, m).tile.token_rows) << m;
  }
}

TEST(Choose, ThePlansLineNamesTheSizes) {
  EXPECT_EQ(to_string(choose(kModels[2], 1)), "8 tokens x 128 and 64 weight rows, gathered");
  EXPECT_EQ(to_string(choose(kModels[2], 16384)), "128 tokens x 192 weight rows, pairs of blocks, sorted");
}

}  // namespace
}  // namespace conclave::experts::cuda
