// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The dense product against sums in double, in every type and variant; rows alone against rows in a batch, bit by bit.
#include "cpu/dense.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "conclave/error.hpp"
#include "cpu/features.hpp"
#include "cpu/float_convert.hpp"

namespace conclave::cpu {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

/// A matrix with rows `padding` elements apart, NaN between them, and its values as f32.
struct Matrix {
  Tensor memory;
  ConstTensorView view;
  std::vector<float> values;

  Matrix(std::int64_t rows, std::int64_t cols, DType dtype, unsigned seed, std::int64_t padding = 0)
      : memory(dtype, {rows, cols + padding}), values(static_cast<std::size_t>(rows * cols)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const std::vector<float> nan(static_cast<std::size_t>(cols + padding), std::numeric_limits<float>::quiet_NaN());
    for (std::int64_t r = 0; r < rows; ++r) {
      float* row = values.data() + r * cols;
      for (std::int64_t c = 0; c < cols; ++c) row[c] = normal(random);
      store_row_f32(nan.data(), memory.view().at(r));
      const TensorView own = memory.view().narrow(1, 0, cols).at(r);
      store_row_f32(row, own);
      load_row_f32(own, row);
    }
    view = memory.view().narrow(1, 0, cols);
  }
};

/// Largest error relative to the sum of the magnitudes that were added.
double error_of(const Matrix& a, const Matrix& w, const std::vector<float>& bias, const TensorView& out) {
  const std::int64_t k = a.view.size(1);
  double worst = 0;
  for (std::int64_t m = 0; m < out.size(0); ++m)
    for (std::int64_t n = 0; n < out.size(1); ++n) {
      double sum = bias.empty() ? 0 : bias[static_cast<std::size_t>(n)], scale = std::fabs(sum) + 1e-30;
      for (std::int64_t i = 0; i < k; ++i) {
        const double p = static_cast<double>(a.values[static_cast<std::size_t>(m * k + i)]) *
                         static_cast<double>(w.values[static_cast<std::size_t>(n * k + i)]);
        sum += p;
        scale += std::fabs(p);
      }
      const double got = out.as<float>()[m * out.stride(0) + n];
      const double error = std::fabs(got - sum) / scale;
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
  return worst;
}

TEST(Dense, EveryVariantMatchesDoubleInEveryTypeAndShape) {
  const auto executor = make_executor(3);
  struct Shape {
    std::int64_t m, n, k;
  };
  const Shape shapes[] = {{1, 1, 1}, {1, 9, 7}, {2, 5, 8}, {3, 4, 17}, {5, 13, 33}, {50, 35, 41}, {9, 40, 129}};
  for (const DenseKernel& kernel : dense_kernels()) {
    if (!kernel.runs_on(features())) continue;
    for (const DType ta : kTypes)
      for (const DType tw : kTypes)
        for (const auto& [m, n, k] : shapes) {
          const Matrix a(m, k, ta, 1, 3), w(n, k, tw, 2, 5), bias(1, n, tw, 3);
          const Tensor out(DType::f32, {m, n + 2});
          std::memset(out.storage()->data(), 0xFF, static_cast<std::size_t>(out.storage()->bytes()));
          const TensorView result = out.view().narrow(1, 0, n);
          dense_with(kernel, a.view, w.view, bias.view.at(0), result, *executor);
          ASSERT_LT(error_of(a, w, bias.values, result), 1e-6) << kernel.name << " " << m << "x" << n << "x" << k;
          dense_with(kernel, a.view, w.view, std::nullopt, result, *executor);
          ASSERT_LT(error_of(a, w, {}, result), 1e-6) << kernel.name << " " << m << "x" << n << "x" << k;
          ASSERT_TRUE(std::isnan(out.as<float>()[n])) << "wrote beyond a row";
        }
  }
}

TEST(Dense, RowsAreTheSameBitsAloneAndInABatchAndWithAnyThreads) {
  const std::int64_t m = 61, n = 37, k = 203;
  const auto one = make_inline_executor();
  const auto four = make_executor(4);
  for (const DenseKernel& kernel : dense_kernels()) {
    if (!kernel.runs_on(features())) continue;
    const Matrix a(m, k, DType::bf16, 4), w(n, k, DType::bf16, 5);
    const Tensor all(DType::f32, {m, n}), again(DType::f32, {m, n}), alone(DType::f32, {1, n});
    dense_with(kernel, a.view, w.view, std::nullopt, all, *four);
    dense_with(kernel, a.view, w.view, std::nullopt, again, *one);
    ASSERT_EQ(std::memcmp(all.as<float>(), again.as<float>(), static_cast<std::size_t>(m * n) * 4), 0) << kernel.name;
    for (std::int64_t i = 0; i < m; ++i) {
      dense_with(kernel, a.view.narrow(0, i, 1), w.view, std::nullopt, alone, *four);
      ASSERT_EQ(std::memcmp(all.as<float>() + i * n, alone.as<float>(), static_cast<std::size_t>(n) * 4), 0)
          << kernel.name << " row " << i;
    }
  }
}

TEST(Dense, NanOfOneRowStaysInIt) {
  Matrix a(7, 19, DType::f32, 6);
  const Matrix w(11, 19, DType::f32, 7);
  a.memory.as<float>()[3 * 19 + 18] = std::numeric_limits<float>::quiet_NaN();
  const Tensor out(DType::f32, {7, 11});
  const auto executor = make_executor(2);
  dense(a.view, w.view, std::nullopt, out, *executor);
  for (std::int64_t i = 0; i < 77; ++i) EXPECT_EQ(std::isnan(out.as<float>()[i]), i / 11 == 3);
}

TEST(Dense, NothingToDoIsLegalWithNullData) {
  const auto executor = make_executor(2);
  const Matrix w(3, 4, DType::f32, 8);
  const ConstTensorView a(nullptr, DType::f32, {0, 4});
  dense(a, w.view, std::nullopt, TensorView(nullptr, DType::f32, {0, 3}), *executor);
  // No columns: the sum of nothing is the bias.
  const Matrix bias(1, 3, DType::f32, 9);
  const Tensor out(DType::f32, {2, 3});
  dense(ConstTensorView(nullptr, DType::f32, {2, 0}), ConstTensorView(nullptr, DType::f32, {3, 0}), bias.view.at(0),
        out, *executor);
  EXPECT_EQ(out.as<float>()[4], bias.values[1]);
}

TEST(Dense, RefusesWhatDoesNotFitNamingIt) {
  const auto executor = make_inline_executor();
  const Matrix a(2, 4, DType::f32, 1), w(3, 5, DType::f32, 1), square(3, 4, DType::f32, 1);
  const Tensor out(DType::f32, {2, 3}), half(DType::bf16, {2, 3});
  const auto message = [&](const ConstTensorView& left, const ConstTensorView& right, const TensorView& result) {
    try {
      dense(left, right, std::nullopt, result, *executor);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(message(a.view, w.view, out).find("number of columns"), std::string::npos);
  EXPECT_NE(message(a.view, square.view, half).find("bf16"), std::string::npos);
  EXPECT_NE(message(a.view.narrow(0, 0, 1), square.view, out).find("[1, 3]"), std::string::npos);
  ConstTensorView transposed = a.view;
  std::swap(transposed.shape[0], transposed.shape[1]);
  std::swap(transposed.strides[0], transposed.strides[1]);
  EXPECT_NE(message(transposed, square.view, out).find("contiguous"), std::string::npos);
}

}  // namespace
}  // namespace conclave::cpu
