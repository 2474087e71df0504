// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The arithmetic under the fast CPU experts: how rows are cut into tiles, sorted by expert and shared out.
#include "experts/cpu/assignment.hpp"

#include <gtest/gtest.h>

#include "experts/cpu/phases.hpp"
#include "experts/cpu/row_tiles.hpp"
#include "support/tensors.hpp"

namespace conclave::experts::grouped {
namespace {

using test::tensor_of;

TEST(RowTiles, CoverEveryRowOnceInTilesOfEqualSize) {
  for (const auto& [tile, quantum] : {std::pair<std::int64_t, std::int64_t>{6, 1}, {12, 1}, {32, 16}})
    for (std::int64_t rows = 1; rows <= 130; ++rows) {
      const RowTiles tiles{rows, tile, quantum};
      EXPECT_EQ(tiles.count(), (rows + tile - 1) / tile);
      std::int64_t covered = 0;
      std::int64_t smallest = tile;
      std::int64_t largest = 0;
      for (std::int64_t t = 0; t < tiles.count(); ++t) {
        EXPECT_EQ(tiles.begin(t), covered);
        EXPECT_GE(tiles.valid(t), 1);
        EXPECT_LE(tiles.valid(t), tiles.padded(t));
        EXPECT_EQ(tiles.padded(t) % quantum, 0);
        covered += tiles.padded(t);
        smallest = std::min(smallest, tiles.padded(t));
        largest = std::max(largest, tiles.padded(t));
      }
      EXPECT_LE(largest, tile);
      EXPECT_LE(largest - smallest, quantum);
      EXPECT_EQ(covered, (rows + quantum - 1) / quantum * quantum);
    }
}

struct Filled {
  test::PoisonedArena memory;
  Assignment assignment;
};

Filled fill(const Tensor& ids, const Tensor& weights, std::int64_t num_experts, bool weight_applied = false,
            std::int64_t quantum = 1) {
  const std::int64_t pairs = ids.view().numel();
  test::PoisonedArena memory([&](Arena& arena) { Assignment::take(arena, pairs, num_experts); });
  Arena arena = memory.arena();
  Assignment a = Assignment::take(arena, pairs, num_experts);
  std::vector<double> own_slots;
  for (std::int64_t e = 0; e < num_experts; ++e) own_slots.push_back(static_cast<double>(e));
  const Tensor map = tensor_of(DType::i32, {num_experts}, own_slots);
  a.fill(SlotLookup(ids, map.view(), num_experts, num_experts), weights, weight_applied, num_experts, quantum);
  return {std::move(memory), a};
}

TEST(Assignment, SortsPairsByExpertInTokenOrder) {
  const Tensor ids = tensor_of(DType::i32, {4, 2}, {2, 0, 2, -1, 0, 2, 9, 2});
  const Tensor weights = tensor_of(DType::f32, {4, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  const Filled f = fill(ids, weights, 4);
  const Assignment& a = f.assignment;
  EXPECT_EQ(a.num_rows, 6);
  EXPECT_EQ(a.max_rows, 4);
  ASSERT_EQ(a.num_active, 2);
  EXPECT_EQ(a.active[0], 2);
  EXPECT_EQ(a.active[1], 0);
  EXPECT_EQ(std::vector<std::int32_t>(a.pairs, a.pairs + 6), (std::vector<std::int32_t>{1, 4, 0, 2, 5, 7}));
  EXPECT_EQ(std::vector<int>(a.present, a.present + 8), (std::vector<int>{1, 1, 1, 0, 1, 1, 0, 1}));
  EXPECT_EQ(a.weights[5], 6.0f);
  EXPECT_EQ(a.experts[2].first, 2);
}

TEST(Assignment, LeavesOutZeroWeightsUnlessTheyAreApplied) {
  const Tensor ids = tensor_of(DType::i32, {3, 1}, {1, 1, 0});
  const Tensor weights = tensor_of(DType::f32, {3, 1}, {0, 2, -0.0});
  EXPECT_EQ(fill(ids, weights, 2).assignment.num_rows, 1);
  const Filled applied = fill(ids, weights, 2, true);
  EXPECT_EQ(applied.assignment.num_rows, 3);
  EXPECT_EQ(applied.assignment.weights[0], 1.0f);
}

TEST(Assignment, PadsEachExpertsRowsToTheQuantum) {
  const Tensor ids = tensor_of(DType::i32, {5, 1}, {3, 1, 1, 3, 1});
  const Tensor weights = tensor_of(DType::f32, {5, 1}, {1, 1, 1, 1, 1});
  const Filled f = fill(ids, weights, 4, false, 16);
  EXPECT_EQ(f.assignment.experts[1].base, 0);
  EXPECT_EQ(f.assignment.experts[3].base, 16);
  EXPECT_EQ(f.assignment.experts[3].first, 3);
}

TEST(Assignment, FindsTheOwnerOfAUnit) {
  const Tensor ids = tensor_of(DType::i32, {6, 1}, {0, 2, 2, 1, 2, 1});
  const Tensor weights = tensor_of(DType::f32, {6, 1}, {1, 1, 1, 1, 1, 1});
  Filled f = fill(ids, weights, 3);
  EXPECT_EQ(f.assignment.count_units([](const ExpertRows& e) { return 2 * e.rows; }), 12);
  for (std::int64_t unit = 0; unit < 12; ++unit)
    EXPECT_EQ(f.assignment.owner_of(unit), unit < 6 ? 0 : unit < 10 ? 1 : 2) << unit;
}

/// An expert that got nearly everything must be cut into enough units for every thread.
TEST(ProductGrid, OneHotExpertMakesWorkForEveryThread) {
  Engine engine{};
  engine.row_tile = 6;
  engine.row_quantum = 1;
  engine.block_tiles = 16;
  engine.sum_tiles = 64;
  const std::int64_t tokens = 512;
  std::vector<double> list(static_cast<std::size_t>(tokens), 3.0);
  list[0] = 1;
  const Tensor ids = tensor_of(DType::i32, {tokens, 1}, list);
  Filled f = fill(ids, tensor_of(DType::f32, {tokens, 1}, std::vector<double>(list.size(), 1.0)), 8);
  for (int threads : {2, 16, 64}) {
    const ProductGrid grid = grid_of(engine, f.assignment, 48, threads);
    EXPECT_FALSE(grid.decode);
    EXPECT_GE(f.assignment.units[f.assignment.num_active], 4 * threads);
  }
}

TEST(ProductGrid, OneTilePerExpertIsDecode) {
  Engine engine{};
  engine.row_tile = 6;
  engine.row_quantum = 1;
  engine.block_tiles = 16;
  engine.sum_tiles = 64;
  const Tensor ids = tensor_of(DType::i32, {6, 1}, {0, 0, 0, 0, 0, 0});
  const Tensor weights = tensor_of(DType::f32, {6, 1}, {1, 1, 1, 1, 1, 1});
  Filled f = fill(ids, weights, 2);
  EXPECT_TRUE(grid_of(engine, f.assignment, 48, 4).decode);
  EXPECT_EQ(f.assignment.units[1], 48);
}

}  // namespace
}  // namespace conclave::experts::grouped
