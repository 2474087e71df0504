// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The dense product on a GPU against sums in double; its bits must not depend on the number of rows.
#include "cuda/dense.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/gpu.hpp"
#include "support/tensors.hpp"

namespace conclave {
namespace {

using test::random_tensor;

class CudaDense : public test::OnGpu {
 protected:
  Tensor product(const ConstTensorView& a, const Tensor& w, const std::optional<ConstTensorView>& bias) const {
    const Tensor out = poisoned(DType::f32, {a.size(0), w.view().size(0)});
    std::optional<Tensor> bias_there;
    if (bias) bias_there = up(*bias);
    std::optional<ConstTensorView> bias_view;
    if (bias_there) bias_view = bias_there->view();
    cuda::dense(up(a), up(w), bias_view, out, stream());
    return down(out);
  }
};

TEST_F(CudaDense, EveryRowIsTheSumInDoubleAndHasTheBitsThatItHasAlone) {
  struct Shape {
    std::int64_t n, k;
    DType a, w;
  };
  // Whole and ragged tiles, K that the tensor cores take and K that they do not, few and many pieces of K.
  const Shape shapes[] = {{60, 2048, DType::bf16, DType::bf16}, {257, 520, DType::bf16, DType::bf16},
                          {8, 40, DType::f16, DType::f16},      {33, 77, DType::bf16, DType::bf16},
                          {19, 130, DType::f32, DType::f32},    {64, 264, DType::bf16, DType::f32}};
  for (const Shape& s : shapes) {
    // With so many tiles one warp walks all pieces of K; with fewer rows a cluster shares them.
    const std::int64_t most = s.n > 256 ? 1801 : 300;
    const Tensor a = random_tensor(s.a, {most, s.k}, 1, 1.0), w = random_tensor(s.w, {s.n, s.k}, 2, 0.1);
    const Tensor bias = random_tensor(DType::f32, {s.n}, 3, 1.0);
    const Tensor all = product(a, w, ConstTensorView(bias));
    double worst = 0;
    for (const std::int64_t m : {std::int64_t{0}, most / 2, most - 1})
      for (std::int64_t n = 0; n < s.n; ++n) {
        double sum = test::load(bias, n), size = std::fabs(sum);
        for (std::int64_t k = 0; k < s.k; ++k) {
          const double term = test::load(a, m * s.k + k) * test::load(w, n * s.k + k);
          sum += term;
          size += std::fabs(term);
        }
        const double got = static_cast<double>(all.as<float>()[m * s.n + n]);
        ASSERT_TRUE(std::isfinite(got));
        worst = std::max(worst, std::fabs(got - sum) / size);
      }
    EXPECT_LT(worst, 1e-6) << "N " << s.n << ", K " << s.k;
    for (const std::int64_t rows : {1, 8, 9, 33, 200}) {
      const Tensor some = product(a.view().narrow(0, 0, rows), w, ConstTensorView(bias));
      EXPECT_TRUE(std::equal(some.as<std::uint32_t>(), some.as<std::uint32_t>() + rows * s.n, all.as<std::uint32_t>()))
          << "N " << s.n << ", K " << s.k << ", " << rows << " rows";
    }
  }
}

}  // namespace
}  // namespace conclave
