// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Routings that are not plain: empty slots, ids out of range, remote experts, duplicates, zero weights, one expert for
// all; and what must not depend on anything: rows alone or in company, one thread or three, the first call or the next.
#include "experts/cpu/grouped_case.hpp"

namespace conclave::test {
namespace {

using CpuRouting = CpuPart;

TEST_P(CpuRouting, EmptyAndOutOfRangeSlotsAddNothing) {
  GroupedCase c = grouped_case(dtype(), {.tokens = 9, .experts = 4, .top_k = 3, .hidden = 33, .inner = 20}, 21);
  const std::int32_t odd[] = {-1, 4, 1000000, -7, INT32_MAX, INT32_MIN};
  for (std::int64_t t = 0; t < 6; ++t) set(c.ids, {t, t % 3}, odd[t]);
  for (std::int64_t s = 0; s < 3; ++s) set(c.ids, {7, s}, -1);
  GroupedRunner runner(GetParam(), c, 2);
  const Tensor out = runner.run(c);
  EXPECT_LT(rel_error(out, c.expected()), tolerance());
  for (double v : values(out.view().at(7))) EXPECT_EQ(v, 0.0);
}

TEST_P(CpuRouting, NothingAtAll) {
  GroupedCase c = grouped_case(dtype(), {.tokens = 5, .experts = 4, .top_k = 2, .hidden = 33, .inner = 20}, 22);
  for (std::int64_t t = 0; t < 5; ++t)
    for (std::int64_t s = 0; s < 2; ++s) set(c.ids, {t, s}, -1);
  GroupedRunner runner(GetParam(), c, 2);
  for (double v : values(runner.run(c))) EXPECT_EQ(v, 0.0);
}

TEST_P(CpuRouting, RemoteExperts) {
  GroupedCase c = grouped_case(dtype(), {.tokens = 14, .experts = 6, .top_k = 2, .hidden = 31, .inner = 18}, 23);
  c.map = tensor_of(DType::i32, {6}, {-1, 2, 0, -1, 1, -1});
  c.w13 = random_tensor(dtype(), {3, 36, 31}, 24, 0.2);
  c.w2 = random_tensor(dtype(), {3, 31, 18}, 25, 0.2);
  EXPECT_LT(error_of(GetParam(), c), tolerance());
}

TEST_P(CpuRouting, RankWithoutExperts) {
  GroupedCase c = grouped_case(dtype(), {.tokens = 4, .experts = 2, .top_k = 1, .hidden = 8, .inner = 8}, 26);
  c.map = tensor_of(DType::i32, {2}, {-1, -1});
  c.w13 = Tensor(dtype(), {0, 16, 8});
  c.w2 = Tensor(dtype(), {0, 8, 8});
  GroupedRunner runner(GetParam(), c, 2);
  for (double v : values(runner.run(c))) EXPECT_EQ(v, 0.0);
}

TEST_P(CpuRouting, DuplicatesAreSummed) {
  GroupedCase c = grouped_case(dtype(), {.tokens = 6, .experts = 4, .top_k = 3, .hidden = 20, .inner = 12}, 27);
  for (std::int64_t t = 0; t < 6; ++t) set(c.ids, {t, 2}, at(c.ids, {t, 0}));
  EXPECT_LT(error_of(GetParam(), c), tolerance());
}

TEST_P(CpuRouting, ZeroWeightSkipsItsTerm) {
  GroupedCase c = grouped_case(dtype(), {.tokens = 8, .experts = 3, .top_k = 2, .hidden = 20, .inner = 12}, 28);
  for (std::int64_t t = 0; t < 8; ++t) {
    set(c.ids, {t, 0}, static_cast<double>(t % 2));
    set(c.ids, {t, 1}, 2);
    set(c.weights, {t, 1}, t == 3 ? -0.0 : 0.0);
  }
  for (std::int64_t h = 0; h < 20; ++h) set(c.w2, {2, h, 0}, NAN);
  EXPECT_LT(error_of(GetParam(), c), tolerance());
}

TEST_P(CpuRouting, WeightOnTheInputIsNotAppliedAgain) {
  GroupedCase c = grouped_case(dtype(), {.tokens = 8, .experts = 3, .top_k = 1, .hidden = 20, .inner = 12}, 29);
  set(c.weights, {2, 0}, 0.0);  // Applied to the input already, where it was the caller's matter.
  const Tensor ones = tensor_of(DType::f32, {8, 1}, std::vector<double>(8, 1.0));
  GroupedRunner runner(GetParam(), c, 2);
  const Tensor out = runner.run(c, c.x, c.ids, c.weights, true);
  EXPECT_LT(rel_error(out, oracle_moe(c.moe(), c.x, c.expert_weights(), c.ids, ones)), tolerance());
}

TEST_P(CpuRouting, NanStaysInItsRow) {
  GroupedCase c = grouped_case(dtype(), {.tokens = 40, .experts = 2, .top_k = 1, .hidden = 35, .inner = 12}, 30);
  GroupedRunner runner(GetParam(), c, 2);
  const Tensor clean = runner.run(c);
  set(c.x, {17, 34}, NAN);
  const Tensor out = runner.run(c);
  for (std::int64_t t = 0; t < 40; ++t) {
    const std::vector<double> row = row_of(out, t);
    if (t == 17) {
      EXPECT_TRUE(std::all_of(row.begin(), row.end(), [](double v) { return std::isnan(v); }));
    } else {
      EXPECT_EQ(row, row_of(clean, t)) << t;
    }
  }
}

/// All tokens' first pick is expert 1, so that it has several tiles and blocks; other picks are spread.
GroupedCase skewed_case(DType dtype, std::int64_t tokens) {
  GroupedCase c = grouped_case(dtype, {.tokens = tokens, .experts = 7, .top_k = 2, .hidden = 69, .inner = 75}, 31);
  for (std::int64_t t = 0; t < tokens; ++t) set(c.ids, {t, 0}, 1);
  return c;
}

TEST_P(CpuRouting, RowsDoNotDependOnTheBatch) {
  const GroupedCase c = skewed_case(dtype(), 130);
  GroupedRunner runner(GetParam(), c, 2);
  const Tensor all = runner.run(c);
  for (std::int64_t size : {1, 2, 4, 7, 16, 33, 64}) {
    for (std::int64_t first = 0; first < 130; first += size == 1 ? 11 : size) {
      const std::int64_t count = std::min(size, 130 - first);
      const Tensor some = runner.run(c, c.x.view().narrow(0, first, count), c.ids.view().narrow(0, first, count),
                                     c.weights.view().narrow(0, first, count));
      ASSERT_TRUE(same_bytes(some, all.view().narrow(0, first, count))) << "rows " << first << " + " << count;
    }
  }
}

TEST_P(CpuRouting, SameBitsForAnyNumberOfThreadsAndEachCall) {
  const GroupedCase c = skewed_case(dtype(), 113);
  GroupedRunner one(GetParam(), c, 1);
  const Tensor expected = one.run(c);
  for (int threads : {1, 2, 3, 5}) {
    GroupedRunner runner(GetParam(), c, threads);
    for (int call = 0; call < 4; ++call) ASSERT_TRUE(same_bytes(runner.run(c), expected)) << threads << " threads";
  }
}

TEST_P(CpuRouting, StridedInputs) {
  // Rows of x and of the ids are windows of wider tensors whose other columns are NaN and nonsense.
  const GroupedCase c = grouped_case(dtype(), {.tokens = 10, .experts = 4, .top_k = 2, .hidden = 21, .inner = 9}, 33);
  const Tensor wide_x = poisoned_tensor(dtype(), {10, 50});
  const Tensor wide_ids = tensor_of(DType::i32, {10, 5}, std::vector<double>(50, 3.0));
  const Tensor wide_weights = poisoned_tensor(DType::f32, {10, 4});
  for (std::int64_t t = 0; t < 10; ++t) {
    for (std::int64_t h = 0; h < 21; ++h) set(wide_x, {t, 3 + h}, at(c.x, {t, h}));
    for (std::int64_t s = 0; s < 2; ++s) {
      set(wide_ids, {t, 1 + s}, at(c.ids, {t, s}));
      set(wide_weights, {t, 2 + s}, at(c.weights, {t, s}));
    }
  }
  GroupedRunner runner(GetParam(), c, 2);
  const Tensor out = runner.run(c, wide_x.view().narrow(1, 3, 21), wide_ids.view().narrow(1, 1, 2),
                                wide_weights.view().narrow(1, 2, 2));
  EXPECT_TRUE(same_bytes(out, runner.run(c)));
}

TEST_P(CpuRouting, InputsThatDoNotFitAreNamed) {
  GroupedCase c = grouped_case(dtype(), {.tokens = 4, .experts = 3, .top_k = 2, .hidden = 16, .inner = 8}, 34);
  GroupedRunner runner(GetParam(), c, 1);
  const auto message = [&](const ConstTensorView& x, const ConstTensorView& ids, const ConstTensorView& weights) {
    try {
      runner.run(c, x, ids, weights);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const Tensor narrow(dtype(), {4, 15});
  const Tensor three(DType::i32, {4, 3});
  const Tensor wrong(DType::f64, {4, 2});
  EXPECT_NE(message(narrow, c.ids, c.weights).find("hidden_states"), std::string::npos);
  EXPECT_NE(message(c.x, three, c.weights).find("topk_ids"), std::string::npos);
  EXPECT_NE(message(c.x, c.ids, wrong).find("topk_weights"), std::string::npos);
}

CONCLAVE_FOR_EACH_CPU_PART(CpuRouting);

}  // namespace
}  // namespace conclave::test
