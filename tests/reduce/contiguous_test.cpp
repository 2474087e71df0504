// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conclave/error.hpp"
#include "conclave/reduce.hpp"
#include "support/tensors.hpp"

namespace conclave {
namespace {

using test::at;
using test::set;
using test::tensor_of;
using test::values;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Problem {
  Tensor rows, ids, weights;
  std::optional<Tensor> map;
  std::int64_t num_experts = 6;
  bool applied = false;
};

Problem random_problem(DType rows, DType weights, std::int64_t num_tokens, std::int64_t top_k, std::int64_t hidden) {
  Problem p;
  p.rows = test::random_tensor(rows, {num_tokens, top_k, hidden}, 1);
  p.ids = test::random_ids(num_tokens, top_k, p.num_experts, 1);
  p.weights = test::random_weights(weights, num_tokens, top_k, 1);
  return p;
}

Tensor reduce(const Problem& p, DType out_dtype = DType::f32, int num_threads = 2) {
  const auto executor = make_executor(num_threads);
  const Tensor out = test::poisoned_tensor(out_dtype, {p.ids.view().size(0), p.rows.view().size(2)});
  ReduceInput input;
  input.rows = p.rows;
  input.topk_ids = p.ids;
  input.topk_weights = p.weights;
  if (p.map) input.expert_map = ConstTensorView(*p.map);
  input.num_experts = p.num_experts;
  input.weight_already_applied = p.applied;
  weight_and_reduce(WeightAndReduceKind::contiguous).apply(input, out, Stream::cpu(*executor));
  return out;
}

std::vector<double> expected(const Problem& p) {
  std::vector<double> out;
  const ConstTensorView rows = p.rows;
  for (std::int64_t m = 0; m < rows.size(0); ++m)
    for (std::int64_t h = 0; h < rows.size(2); ++h) {
      double sum = 0;
      for (std::int64_t j = 0; j < rows.size(1); ++j)
        sum += (p.applied ? 1.0 : at(p.weights, {m, j})) * at(rows, {m, j, h});
      out.push_back(sum);
    }
  return out;
}

TEST(Contiguous, SumsEveryDtypeOfRowsWeightsAndOutput) {
  for (DType rows : {DType::f32, DType::bf16, DType::f16})
    for (DType weights : {DType::f32, DType::bf16, DType::f16}) {
      const Problem p = random_problem(rows, weights, 9, 3, 1031);
      EXPECT_LT(test::rel_error(reduce(p), expected(p)), 2e-7) << name_of(rows) << " " << name_of(weights);
    }
  const Problem p = random_problem(DType::f32, DType::f32, 9, 3, 1031);
  // Rounded once, from the same f32 sums.
  EXPECT_EQ(values(reduce(p, DType::bf16)), values(tensor_of(DType::bf16, {9, 1031}, values(reduce(p)))));
}

/// [.7, .3] in f32 that is read as bf16 would be [4e-8, .7].
TEST(Contiguous, ReadsWeightsByTheirTag) {
  Problem p = random_problem(DType::f32, DType::f32, 1, 2, 4);
  p.rows = tensor_of(DType::f32, {1, 2, 4}, {1, 1, 1, 1, 10, 10, 10, 10});
  p.weights = tensor_of(DType::f32, {1, 2}, {.7, .3});
  EXPECT_NEAR(at(reduce(p), {0, 2}), 3.7, 1e-6);
  p.weights = tensor_of(DType::bf16, {1, 2}, {.7, .3});
  EXPECT_NEAR(at(reduce(p), {0, 2}), at(p.weights, {0, 0}) + 10 * at(p.weights, {0, 1}), 1e-6);
  p.weights = tensor_of(DType::f64, {1, 2}, {.7, .3});
  try {
    reduce(p);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("topk_weights"), HasSubstr("f64")));
  }
}

/// An expert output of 70000 does not fit f16, its weighted share does: nothing may be narrowed before the weight.
TEST(Contiguous, WeightsBeforeNarrowing) {
  Problem p = random_problem(DType::f32, DType::f32, 1, 2, 1);
  p.rows = tensor_of(DType::f32, {1, 2, 1}, {70000, 123456});
  p.weights = tensor_of(DType::f32, {1, 2}, {0.1, 0.0});
  EXPECT_EQ(at(reduce(p, DType::f16), {0, 0}), 7000.0);
}

TEST(Contiguous, AZeroWeightSkipsItsRow) {
  Problem p = random_problem(DType::f32, DType::f32, 2, 2, 3);
  for (std::int64_t h = 0; h < 3; ++h) set(p.rows, {1, 0, h}, NAN);
  set(p.weights, {1, 0}, 0.0);
  const Tensor out = reduce(p);
  for (std::int64_t h = 0; h < 3; ++h)
    EXPECT_FLOAT_EQ(static_cast<float>(at(out, {1, h})),
                    static_cast<float>(at(p.weights, {1, 1}) * at(p.rows, {1, 1, h})));
}

/// The map's last entries are local, so reading it at -1 or behind its end would find an expert; the rows of slots
/// without one are NaN and must not be read.
TEST(Contiguous, EmptyRemoteAndStaleSlotsAddNothing) {
  Problem p = random_problem(DType::f32, DType::f32, 4, 2, 5);
  p.num_experts = 4;
  p.map = tensor_of(DType::i32, {4}, {-1, -1, 0, 1});
  p.ids = tensor_of(DType::i32, {4, 2}, {2, 0, -1, -1, 0, 1, 1000000, 4});
  for (const auto& [m, j] : {std::pair{0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}, {3, 0}, {3, 1}})
    for (std::int64_t h = 0; h < 5; ++h) set(p.rows, {m, j, h}, NAN);
  const Tensor out = reduce(p);
  for (std::int64_t m : {1, 2, 3})
    for (double v : values(out.view().at(m))) EXPECT_EQ(v, 0.0);
  EXPECT_FLOAT_EQ(static_cast<float>(at(out, {0, 4})),
                  static_cast<float>(at(p.weights, {0, 0}) * at(p.rows, {0, 0, 4})));
}

TEST(Contiguous, DuplicatesAreSummed) {
  Problem p = random_problem(DType::f32, DType::f32, 1, 2, 1);
  p.rows = tensor_of(DType::f32, {1, 2, 1}, {8, 8});
  p.ids = tensor_of(DType::i32, {1, 2}, {1, 1});
  p.weights = tensor_of(DType::f32, {1, 2}, {.3, .2});
  EXPECT_NEAR(at(reduce(p), {0, 0}), 4.0, 1e-6);
}

TEST(Contiguous, WeightsThatAreInTheRowsAlreadyCountAsOne) {
  Problem p = random_problem(DType::f32, DType::f32, 3, 1, 7);
  p.applied = true;
  EXPECT_EQ(values(reduce(p)), values(p.rows));
}

TEST(Contiguous, TakesIdsOfSixtyFourBits) {
  Problem p = random_problem(DType::f32, DType::f32, 3, 2, 7);
  const std::vector<double> narrow = values(reduce(p));
  p.ids = tensor_of(DType::i64, {3, 2}, values(p.ids));
  EXPECT_EQ(values(reduce(p)), narrow);
}

/// In f32 the order shows: 1e8 + 1 - 1e8 is 0, 1e8 - 1e8 + 1 is 1.
TEST(Contiguous, AddsInTheOrderOfPicks) {
  Problem p = random_problem(DType::f32, DType::f32, 2, 3, 1);
  p.rows = tensor_of(DType::f32, {2, 3, 1}, {1e8, 1, -1e8, 1e8, -1e8, 1});
  p.weights = tensor_of(DType::f32, {2, 3}, {1, 1, 1, 1, 1, 1});
  EXPECT_EQ(at(reduce(p), {0, 0}), 0.0);
  EXPECT_EQ(at(reduce(p), {1, 0}), 1.0);
}

TEST(Contiguous, BitsDependOnNothingButTheRow) {
  const Problem p = random_problem(DType::bf16, DType::f32, 65, 4, 700);
  const Tensor out = reduce(p);
  EXPECT_TRUE(test::same_bytes(out, reduce(p, DType::f32, 1)));
  Problem alone = p;
  alone.rows = tensor_of(DType::bf16, {1, 4, 700}, values(p.rows.view().at(64)));
  alone.ids = tensor_of(DType::i32, {1, 4}, values(p.ids.view().at(64)));
  alone.weights = tensor_of(DType::f32, {1, 4}, values(p.weights.view().at(64)));
  EXPECT_TRUE(test::same_bytes(reduce(alone).view().at(0), out.view().at(64)));
}

TEST(Contiguous, NothingInIsNothingOut) {
  EXPECT_EQ(reduce(random_problem(DType::f32, DType::f32, 0, 2, 5)).view().numel(), 0);
}

TEST(Contiguous, RefusesShapesThatDoNotFit) {
  Problem p = random_problem(DType::f32, DType::f32, 3, 2, 5);
  p.rows = test::random_tensor(DType::f32, {3, 3, 5}, 1);
  EXPECT_THROW(reduce(p), Error);
  p = random_problem(DType::f32, DType::f32, 3, 2, 5);
  p.weights = test::random_weights(DType::f32, 3, 1, 1);
  EXPECT_THROW(reduce(p), Error);
}

}  // namespace
}  // namespace conclave
