// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// experts/reference_unfinalized: rows sorted by expert without gaps, the map that finds them, weights in the layer's
// dtype; row by row the bits of experts/reference_standard.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/expert_case.hpp"

namespace conclave {

std::vector<Entry<Experts>> builtin_experts();

namespace {

struct OpenRun {
  std::unique_ptr<Experts> experts;
  std::unique_ptr<PackedWeights> packed;
  std::unique_ptr<test::PoisonedArena> memory;
  UnfinalizedMoeOutput open;
};

OpenRun run_unfinalized(const test::ExpertCase& c, bool weight_applied = false) {
  const auto executor = make_executor(2);
  OpenRun r;
  r.experts = test::make_experts(builtin_experts(), "experts/reference_unfinalized", c.problem);
  const auto& part = dynamic_cast<ModularExperts&>(*r.experts);
  r.packed = part.pack(c.weights, Stream::cpu(*executor));
  const std::int64_t m = c.hidden_states.view().size(0);
  r.memory = std::make_unique<test::PoisonedArena>([&](Arena& a) { part.take_buffers(a, m); });
  Arena arena = r.memory->arena();
  const ExpertsBuffers buffers = part.take_buffers(arena, m);
  ExpertsInput input;
  input.hidden_states = c.hidden_states;
  input.topk_ids = c.topk_ids;
  input.topk_weights = c.topk_weights;
  input.expert_map = c.expert_map;
  input.router_weight_applied = weight_applied;
  part.apply(input, *r.packed, buffers, Stream::cpu(*executor));
  EXPECT_TRUE(r.memory->guard_intact());
  r.open = part.unfinalized_output(buffers);
  return r;
}

Tensor run_finalized_rows(const test::ExpertCase& c) {
  const auto executor = make_executor(2);
  const auto experts = test::make_experts(builtin_experts(), "experts/reference_standard", c.problem);
  const auto packed = experts->pack(c.weights, Stream::cpu(*executor));
  return test::run_standard(dynamic_cast<const ModularExperts&>(*experts), c, *packed, *executor);
}

std::int32_t row_of_pick(const UnfinalizedMoeOutput& open, std::int64_t token, std::int64_t pick) {
  return open.expanded_idx_to_permuted_idx.at(token).as<std::int32_t>()[pick];
}

TEST(ReferenceUnfinalized, RowsAreThoseOfTheStandardReference) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    // More rows than one wave holds.
    test::ExpertCase c = test::make_expert_case(test::small_config(dtype), 37, 21);
    c.topk_ids.as<std::int32_t>()[4] = -1;                                // empty
    c.topk_ids.as<std::int32_t>()[7] = c.topk_ids.as<std::int32_t>()[6];  // named twice
    const OpenRun r = run_unfinalized(c);
    const Tensor rows = run_finalized_rows(c);
    std::vector<std::pair<std::int32_t, std::int32_t>> order;  // (row, expert)
    for (std::int64_t t = 0; t < 37; ++t)
      for (std::int64_t k = 0; k < 3; ++k) {
        const std::int32_t row = row_of_pick(r.open, t, k);
        if (t * 3 + k == 4) {
          ASSERT_EQ(row, -1);
          continue;
        }
        ASSERT_TRUE(test::same_bytes(r.open.gemm2_permuted.at(row), rows.view().at(t).at(k))) << t << " " << k;
        order.emplace_back(row, c.topk_ids.as<std::int32_t>()[t * 3 + k]);
      }
    std::sort(order.begin(), order.end());
    for (std::size_t i = 0; i < order.size(); ++i) {
      ASSERT_EQ(order[i].first, static_cast<std::int32_t>(i)) << "a gap, or a row twice";
      if (i > 0) {
        ASSERT_LE(order[i - 1].second, order[i].second) << "not sorted by expert";
      }
    }
    // What the map does not name is written too.
    for (std::int64_t h = 0; h < 19; ++h) ASSERT_EQ(test::at(r.open.gemm2_permuted, {37 * 3 - 1, h}), 0.0);
  }
}

/// In a bf16 layer too: nobody rounds router weights.
TEST(ReferenceUnfinalized, WeightsAreAsTheRouterGaveThem) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const test::ExpertCase c = test::make_expert_case(test::small_config(dtype), 5, 23);
    const OpenRun r = run_unfinalized(c);
    ASSERT_EQ(r.open.expert_weights.dtype, DType::f32);
    for (std::int64_t t = 0; t < 5; ++t)
      for (std::int64_t k = 0; k < 3; ++k)
        ASSERT_EQ(test::at(r.open.expert_weights, {t, k}), test::at(c.topk_weights, {t, k}));
    const OpenRun applied = run_unfinalized(c, true);
    for (double w : test::values(applied.open.expert_weights)) ASSERT_EQ(w, 1.0);
  }
}

TEST(ReferenceUnfinalized, RemoteExpertsHaveNoRow) {
  test::ExpertCase c = test::make_expert_case(test::small_config(), 6, 25, 2);
  const Tensor map = test::tensor_of(DType::i32, {5}, {-1, 1, -1, 0, -1});
  c.expert_map = map.view();
  const OpenRun r = run_unfinalized(c);
  const Tensor rows = run_finalized_rows(c);
  int local = 0;
  for (std::int64_t t = 0; t < 6; ++t)
    for (std::int64_t k = 0; k < 3; ++k) {
      const std::int32_t id = c.topk_ids.as<std::int32_t>()[t * 3 + k];
      const std::int32_t row = row_of_pick(r.open, t, k);
      ASSERT_EQ(row >= 0, id == 1 || id == 3);
      if (row < 0) continue;
      ++local;
      ASSERT_TRUE(test::same_bytes(r.open.gemm2_permuted.at(row), rows.view().at(t).at(k)));
    }
  EXPECT_GT(local, 0);
}

TEST(ReferenceUnfinalized, OtherPartsHaveNoOpenForm) {
  const auto experts = test::make_experts(builtin_experts(), "experts/reference_standard",
                                          test::make_expert_case(test::small_config(), 1, 1).problem);
  EXPECT_THROW(dynamic_cast<const ModularExperts&>(*experts).unfinalized_output({}), Error);
}

}  // namespace
}  // namespace conclave
