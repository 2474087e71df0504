// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
#include <gtest/gtest.h>

#include <algorithm>

#include "conclave/error.hpp"
#include "conclave/reduce.hpp"
#include "support/tensors.hpp"

namespace conclave {
namespace {

using test::at;
using test::set;
using test::tensor_of;
using test::values;

struct BatchedProblem {
  Tensor rows;  // [E_local, T, H]
  Tensor ids, weights;
  std::optional<Tensor> map;
  std::int64_t num_experts = 0;
  bool applied = false;
};

Tensor reduce_batched(const BatchedProblem& p, DType out_dtype = DType::f32, int num_threads = 2) {
  const auto executor = make_executor(num_threads);
  const Tensor out = test::poisoned_tensor(out_dtype, {p.ids.view().size(0), p.rows.view().size(2)});
  ReduceInput input;
  input.rows = p.rows;
  input.topk_ids = p.ids;
  input.topk_weights = p.weights;
  if (p.map) input.expert_map = ConstTensorView(*p.map);
  input.num_experts = p.num_experts;
  input.weight_already_applied = p.applied;
  weight_and_reduce(WeightAndReduceKind::naive_batched).apply(input, out, Stream::cpu(*executor));
  return out;
}

/// Rows of 1000 * expert + 10 * token + column at the place where the batched format has them; NaN elsewhere.
BatchedProblem marked_problem(const Tensor& ids, std::int64_t num_local, std::int64_t max_rows,
                              std::optional<Tensor> map) {
  BatchedProblem p;
  p.ids = ids;
  p.map = std::move(map);
  p.rows = test::poisoned_tensor(DType::f32, {num_local, max_rows, 3});
  const std::int64_t num_tokens = ids.view().size(0);
  p.weights = test::random_weights(DType::f32, num_tokens, ids.view().size(1), 5);
  p.num_experts = p.map ? p.map->view().size(0) : num_local;
  for (std::int64_t e = 0; e < num_local; ++e) {
    std::int64_t row = 0;
    for (std::int64_t m = 0; m < num_tokens; ++m) {
      bool picked = false;
      for (std::int64_t j = 0; j < ids.view().size(1); ++j) {
        const auto id = static_cast<std::int64_t>(at(ids, {m, j}));
        picked = picked || (id >= 0 && id < p.num_experts && (p.map ? at(*p.map, {id}) : double(id)) == double(e));
      }
      if (!picked) continue;
      for (std::int64_t h = 0; h < 3; ++h) set(p.rows, {e, row, h}, double(1000 * e + 10 * m + h));
      ++row;
    }
  }
  return p;
}

std::vector<double> expected_batched(const BatchedProblem& p) {
  std::vector<double> out;
  for (std::int64_t m = 0; m < p.ids.view().size(0); ++m)
    for (std::int64_t h = 0; h < 3; ++h) {
      double sum = 0;
      for (std::int64_t j = 0; j < p.ids.view().size(1); ++j) {
        const auto id = static_cast<std::int64_t>(at(p.ids, {m, j}));
        if (id < 0 || id >= p.num_experts) continue;
        const double slot = p.map ? at(*p.map, {id}) : double(id);
        if (slot < 0) continue;
        sum += (p.applied ? 1.0 : at(p.weights, {m, j})) * (1000 * slot + double(10 * m + h));
      }
      out.push_back(sum);
    }
  return out;
}

TEST(NaiveBatched, FindsEachRowByCountingTokens) {
  const BatchedProblem p = marked_problem(test::random_ids(200, 3, 7, 1), 7, 200, {});
  EXPECT_LT(test::rel_error(reduce_batched(p), expected_batched(p)), 2e-7);
  EXPECT_TRUE(test::same_bytes(reduce_batched(p), reduce_batched(p, DType::f32, 1)));
}

/// A token that names an expert twice has one row there and adds it twice; the next token's row follows it directly.
TEST(NaiveBatched, DuplicatesShareARow) {
  const Tensor ids = tensor_of(DType::i32, {4, 3}, {1, 1, 0, 1, 2, 1, 0, 1, 0, 2, 2, 2});
  const BatchedProblem p = marked_problem(ids, 3, 4, {});
  EXPECT_LT(test::rel_error(reduce_batched(p), expected_batched(p)), 2e-7);
}

TEST(NaiveBatched, EmptyRemoteAndStaleSlotsAddNothing) {
  const Tensor ids = tensor_of(DType::i64, {5, 2}, {2, 3, -1, -1, 0, -1, 1000000, 2, 4, 3});
  const BatchedProblem p = marked_problem(ids, 2, 5, tensor_of(DType::i32, {4}, {-1, -1, 0, 1}));
  const Tensor out = reduce_batched(p);
  EXPECT_LT(test::rel_error(out, expected_batched(p)), 2e-7);
  for (std::int64_t m : {1, 2})
    for (double v : values(out.view().at(m))) EXPECT_EQ(v, 0.0);
}

TEST(NaiveBatched, AZeroWeightSkipsItsRowAndStillCountsIt) {
  const Tensor ids = tensor_of(DType::i32, {2, 2}, {0, 1, 0, 1});
  BatchedProblem p = marked_problem(ids, 2, 2, {});
  for (std::int64_t h = 0; h < 3; ++h) set(p.rows, {0, 0, h}, NAN);
  set(p.weights, {0, 0}, 0.0);
  const Tensor out = reduce_batched(p);
  EXPECT_FLOAT_EQ(float(at(out, {0, 1})), float(at(p.weights, {0, 1}) * 1001));
  EXPECT_FLOAT_EQ(float(at(out, {1, 1})), float(at(p.weights, {1, 0}) * 11 + at(p.weights, {1, 1}) * 1011));
}

TEST(NaiveBatched, WeightsThatAreInTheRowsAlreadyCountAsOne) {
  BatchedProblem p = marked_problem(test::random_ids(6, 1, 3, 1), 3, 6, {});
  p.applied = true;
  EXPECT_LT(test::rel_error(reduce_batched(p), expected_batched(p)), 2e-7);
}

TEST(NaiveBatched, ReadsEveryDtype) {
  BatchedProblem p = marked_problem(test::random_ids(6, 2, 3, 1), 3, 6, {});
  for (DType dtype : {DType::bf16, DType::f16}) {
    BatchedProblem q = p;
    q.weights = tensor_of(dtype, {6, 2}, values(p.weights));
    EXPECT_LT(test::rel_error(reduce_batched(q), expected_batched(q)), 2e-7) << name_of(dtype);
  }
  p.weights = tensor_of(DType::i32, {6, 2}, std::vector<double>(12, 1.0));
  EXPECT_THROW(reduce_batched(p), Error);
}

TEST(NaiveBatched, NothingInIsNothingOut) {
  EXPECT_EQ(reduce_batched(marked_problem(Tensor(DType::i32, {0, 2}), 3, 0, {})).view().numel(), 0);
}

TEST(NaiveBatched, NeverReadsBehindTheRowsOfAnExpert) {
  BatchedProblem p = marked_problem(tensor_of(DType::i32, {3, 1}, {1, 1, 1}), 2, 3, {});
  p.rows = test::random_tensor(DType::f32, {2, 2, 3}, 1);  // Room for two rows, three are asked for.
  EXPECT_THROW(reduce_batched(p), Error);
}

}  // namespace
}  // namespace conclave
