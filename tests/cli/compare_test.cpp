// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What counts as the same: relative error of the whole, element by element, NaN and infinities, ids.
#include "cli/compare.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "conclave/error.hpp"

namespace conclave::cli {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Compare : public testing::Test {
 protected:
  Comparison of(std::vector<float> a, std::vector<float> b, const Tolerance& tolerance) {
    const auto n = static_cast<std::int64_t>(a.size());
    return compare(ConstTensorView(a.data(), DType::f32, {1, n}), ConstTensorView(b.data(), DType::f32, {1, n}),
                   tolerance, *executor_);
  }
  std::unique_ptr<Executor> executor_ = make_inline_executor();
};

TEST_F(Compare, RelativeErrorOfTheWhole) {
  const Comparison c = of({3, 4.01F}, {3, 4}, {1e-2, {}});
  EXPECT_NEAR(c.relative, 0.002, 1e-5);
  EXPECT_NEAR(c.max_abs, 0.01, 1e-5);
  EXPECT_TRUE(c.ok);
  EXPECT_FALSE(of({3, 4.01F}, {3, 4}, {1e-3, {}}).ok);
  EXPECT_FALSE(of({3, kNan}, {3, 4}, {1e-2, {}}).ok) << "an element that was not written";
}

TEST_F(Compare, ElementByElement) {
  const Tolerance tolerance{0, CaseTolerance{0.1, 0.01}};
  EXPECT_TRUE(of({100.9F, 0.09F}, {100, 0}, tolerance).ok);
  EXPECT_FALSE(of({100, 0.2F}, {100, 0}, tolerance).ok);
  EXPECT_TRUE(of({kNan, kInfinity}, {kNan, kInfinity}, tolerance).ok);
  EXPECT_FALSE(of({kNan, 1}, {1, 1}, tolerance).ok);
  EXPECT_FALSE(of({1, 1}, {1, kNan}, tolerance).ok);
  EXPECT_FALSE(of({kInfinity}, {-kInfinity}, tolerance).ok);
}

TEST_F(Compare, ShapesMustAgree) {
  const std::vector<float> x(6, 0);
  EXPECT_THROW(compare(ConstTensorView(x.data(), DType::f32, {2, 3}), ConstTensorView(x.data(), DType::f32, {3, 2}),
                       {1, {}}, *executor_),
               Error);
}

TEST_F(Compare, IdsInTheFirstColumns) {
  const std::vector<std::int32_t> a = {1, 2, 9, 3, 4, 9, 5, 5, 9}, same = {1, 2, 3, 4, 5, 5};
  const auto with = [&](const std::vector<std::int32_t>& b) {
    return compare_ids(ConstTensorView(a.data(), DType::i32, {3, 3}), ConstTensorView(b.data(), DType::i32, {3, 2}), 2);
  };
  EXPECT_EQ(with(same).different, 0);
  EXPECT_TRUE(with(same).same_order);
  EXPECT_EQ(with({2, 1, 3, 4, 5, 5}).different, 0);
  EXPECT_FALSE(with({2, 1, 3, 4, 5, 5}).same_order);
  EXPECT_EQ(with({1, 7, 3, 4, 5, 5}).different, 1);
  EXPECT_EQ(with({1, 2, 3, 4, 5, 6}).different, 1) << "a duplicate counts twice";
  EXPECT_EQ(with({3, 4, 1, 2, 5, 5}).different, 4) << "rows are not mixed";
}

TEST_F(Compare, AViewOfOneRowHasItsOwnShape) {
  const std::vector<float> x(6, 1);
  const ConstTensorView matrix(x.data(), DType::f32, {2, 3});
  EXPECT_TRUE(compare(matrix.at(0), ConstTensorView(x.data(), DType::f32, {3}), {1e-5, {}}, *executor_).ok);
}

}  // namespace
}  // namespace conclave::cli
