// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Predictions beside times that were measured on an H200 (bench/results/h200.md, medians, bf16), without a GPU.
#include "experts/cuda/predict.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace conclave::experts::cuda {
namespace {

constexpr GemmCeilings kH200{.bytes_per_second = 4.22e12, .flops = 816e12};
constexpr std::array<std::int64_t, 5> kTokens{64, 256, 1024, 4096, 16384};

struct Measured {
  const char* name;
  GemmProblem problem;
  std::array<double, 5> microseconds;  // At kTokens.
};

constexpr std::array kMeasured = {
    Measured{"OLMoE", {64, 8, 2048, 1024}, {202, 210, 304, 840, 3030}},
    Measured{"Qwen3-30B", {128, 8, 2048, 768}, {292.6, 305.5, 355, 700, 2520}},
    Measured{"Mixtral", {8, 2, 4096, 14336}, {666.6, 715.7, 1430, 4650, 18450}},
    Measured{"gpt-oss-120b", {128, 4, 2880, 2880}, {1282, 1486, 1580, 2080, 6500}},
};

TEST(Predict, WithinFifteenPercentOfWhatWasMeasured) {
  for (const Measured& m : kMeasured)
    for (std::size_t i = 0; i < kTokens.size(); ++i) {
      const double predicted = 1e6 * predict_seconds(m.problem, kH200, kTokens[i]);
      EXPECT_NEAR(predicted, m.microseconds[i], 0.15 * m.microseconds[i]) << m.name << ", " << kTokens[i] << " tokens";
    }
}

TEST(Predict, GrowsWithTheTokensAndNeverPassesTheFloor) {
  for (const Measured& m : kMeasured) {
    double before = 0;
    for (std::int64_t tokens = 1; tokens <= 131072; tokens *= 2) {
      const GemmProblem& p = m.problem;
      const double now = predict_seconds(p, kH200, tokens);
      const double matrix = 3.0 * static_cast<double>(p.hidden_size * p.intermediate_size);
      const double floor = std::max(2 * matrix * active_experts(p, tokens) / kH200.bytes_per_second,
                                    2 * matrix * static_cast<double>(tokens * p.top_k) / kH200.flops);
      EXPECT_GT(now, before) << m.name << ", " << tokens;
      EXPECT_GT(now, floor) << m.name << ", " << tokens;
      before = now;
    }
  }
}

TEST(Predict, NothingIsSaidWithoutCeilings) {
  EXPECT_EQ(predict_seconds(kMeasured[0].problem, {}, 64), 0);
  EXPECT_EQ(predict_seconds(kMeasured[0].problem, kH200, 0), 0);
}

}  // namespace
}  // namespace conclave::experts::cuda
