// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quant/expert_matrices.hpp"
#include "quant/matrices.hpp"
#include "quant/matrix.hpp"
#include "support/expert_case.hpp"

namespace conclave::quant {
namespace {

using K = QuantKey;

MoeConfig config(W13Layout layout) {
  MoeConfig moe = test::small_config();
  moe.num_experts = 2;
  moe.top_k = 1;
  moe.hidden_size = 48;
  moe.intermediate_size = 32;
  moe.w13_layout = layout;
  return moe;
}

/// [rows, cols] of one expert, through the views that kernels decode.
std::vector<float> decoded(const ExpertMatrices& matrices, std::int64_t rows, std::int64_t cols) {
  std::vector<float> out(static_cast<std::size_t>(rows * cols), NAN);
  for (const ExpertMatrix& part : matrices) {
    check_matrix(part.matrix);
    const Format f = format_of(part.matrix.key, QuantRole::weights);
    for (std::int64_t r = 0; r < part.matrix.rows; ++r)
      dequantise_row(f, part.matrix, r, &out[static_cast<std::size_t>((part.first_row + r * part.row_step) * cols)]);
  }
  return out;
}

TEST(QuantisedExperts, GateAndUpWithScalesOfTheirOwnInEveryLayout) {
  for (W13Layout layout : {W13Layout::gate_up, W13Layout::up_gate, W13Layout::interleaved}) {
    const MoeConfig moe = config(layout);
    test::ExpertCase plain = test::make_expert_case(moe, 1, 3);
    // Up is a thousand times smaller: with one scale for both it would keep next to nothing of fp8.
    for (std::int64_t e = 0; e < 2; ++e)
      for (std::int64_t i = 0; i < 32; ++i)
        for (std::int64_t h = 0; h < 48; ++h) {
          const std::int64_t row = layout == W13Layout::gate_up ? 32 + i : layout == W13Layout::up_gate ? i : 2 * i + 1;
          test::set(plain.w13, {e, row, h}, test::at(plain.w13, {e, row, h}) * 1e-3);
        }
    for (K key : {K::fp8_tensor, K::int8_tensor, K::nvfp4}) {
      const QuantisedExperts q = quantise_experts(moe, key, plain.weights, true);
      const ExpertWeights w = q.weights(plain.weights);
      const auto& wide = key == K::nvfp4 ? w.w13_global_scale : w.w13_scale;
      ASSERT_EQ(wide->size(1), 2);
      for (std::int64_t e = 0; e < 2; ++e) {
        EXPECT_GT(test::at(*wide, {e, 0, 0}), 100 * test::at(*wide, {e, 1, 0}));
        const std::vector<float> y = decoded(w13_matrices(moe, key, w, e), 64, 48);
        double worst = 0;
        for (std::int64_t r = 0; r < 64; ++r) {
          const auto exact = test::values(plain.w13.view().at(e).at(r));
          const std::vector<double> row(y.begin() + r * 48, y.begin() + (r + 1) * 48);
          worst = std::max(worst, test::rel_error(row, exact));
        }
        EXPECT_LT(worst, key == K::nvfp4 ? 0.2 : 0.05) << name_of(key) << " " << name_of(layout);
      }
    }
  }
}

TEST(QuantisedExperts, EachExpertHasScalesOfItsOwn) {
  const MoeConfig moe = config(W13Layout::gate_up);
  test::ExpertCase plain = test::make_expert_case(moe, 1, 4);
  for (std::int64_t i = 0; i < plain.w2.view().numel() / 2; ++i) plain.w2.as<float>()[i] *= 64;
  for (K key : all_quant_keys()) {
    if (key == K::none || !supports_key(key, QuantRole::weights)) continue;
    if (!supports_cols(key, QuantRole::weights, "", 48) || !supports_cols(key, QuantRole::weights, "", 32)) continue;
    const QuantisedExperts q = quantise_experts(moe, key, plain.weights);
    const ExpertWeights w = q.weights(plain.weights);
    for (std::int64_t e = 0; e < 2; ++e) {
      const std::vector<float> y = decoded(w2_matrices(moe, key, w, e), 48, 32);
      const std::vector<double> row(y.begin(), y.end());
      EXPECT_LT(test::rel_error(row, test::values(plain.w2.view().at(e))), 0.2) << name_of(key);
      // The same as the expert alone.
      EXPECT_EQ(y, test::dequantised(test::quantised(key, plain.w2.view().at(e)))) << name_of(key);
    }
  }
}

TEST(QuantisedExperts, NativePackedElementsAndBytesAreTheSame) {
  const MoeConfig moe = [] {
    MoeConfig m = config(W13Layout::gate_up);
    m.hidden_size = 64;
    return m;
  }();
  const test::ExpertCase plain = test::make_expert_case(moe, 1, 5);
  const QuantisedExperts q = quantise_experts(moe, K::mxfp4, plain.weights);
  ExpertWeights w = q.weights(plain.weights);
  const std::vector<float> expected = decoded(w13_matrices(moe, K::mxfp4, w, 1), 64, 64);
  w.w13 = ConstTensorView(w.w13.data, DType::fp4_e2m1, {2, 64, 64});
  EXPECT_EQ(decoded(w13_matrices(moe, K::mxfp4, w, 1), 64, 64), expected);
}

}  // namespace
}  // namespace conclave::quant
