// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The reference part on quantised weights and activations: every key of either role, against products in double around
// the codecs, which have tests of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conclave/quantise.hpp"
#include "experts/supports.hpp"
#include "quant/activations.hpp"
#include "quant/expert_matrices.hpp"
#include "quant/matrix.hpp"
#include "support/expert_case.hpp"
#include "support/message_of.hpp"
#include "support/oracle.hpp"

namespace conclave {

std::vector<Entry<Experts>> builtin_experts();

namespace {

using test::ExpertCase;
using ::testing::HasSubstr;
using K = QuantKey;

const std::string kReference = "experts/reference_standard";

/// Sizes that every group divides, gate and up with rows in turns.
MoeConfig quantisable_config() {
  MoeConfig moe = test::small_config();
  moe.num_experts = 4;
  moe.hidden_size = 256;
  moe.intermediate_size = 128;
  moe.w13_layout = W13Layout::interleaved;
  return moe;
}

struct QuantisedCase {
  ExpertCase plain;    ///< As drawn.
  ExpertCase decoded;  ///< With the values that the codes have.
  ExpertCase coded;
  QuantisedExperts owned;
  Tensor a1, a2;
};

Tensor decoded_matrices(const ExpertCase& c, K key, const ExpertWeights& w, bool first) {
  const MoeConfig& moe = c.moe();
  Tensor out(DType::f32, first ? std::initializer_list<std::int64_t>{4, 256, 256}
                               : std::initializer_list<std::int64_t>{4, 256, 128});
  for (std::int64_t e = 0; e < 4; ++e)
    for (const auto& part : first ? quant::w13_matrices(moe, key, w, e) : quant::w2_matrices(moe, key, w, e)) {
      const quant::Format f = quant::format_of(key, QuantRole::weights);
      for (std::int64_t r = 0; r < part.matrix.rows; ++r)
        quant::dequantise_row(f, part.matrix, r, out.view().at(e).at(part.first_row + r * part.row_step).as<float>());
    }
  return out;
}

QuantisedCase make_quantised(K weights, K activations, std::int64_t num_tokens = 5) {
  QuantisedCase q;
  MoeConfig moe = quantisable_config();
  q.plain = test::make_expert_case(moe, num_tokens, 21);
  q.coded = q.plain;
  q.coded.problem.quant = {weights, activations};
  q.decoded = q.plain;
  if (weights != K::none) {
    q.owned = quantise_experts(moe, weights, q.plain.weights, true);
    q.coded.weights = q.owned.weights(q.plain.weights);
    q.decoded.w13 = decoded_matrices(q.plain, weights, q.coded.weights, true);
    q.decoded.w2 = decoded_matrices(q.plain, weights, q.coded.weights, false);
    q.decoded.weights.w13 = q.decoded.w13;
    q.decoded.weights.w2 = q.decoded.w2;
  }
  if (quant::has_static_scale(activations)) {
    const double unit = 3.0 / (activations == K::nvfp4 ? 2688 : activations == K::int8_tensor ? 127 : 448);
    q.a1 = test::tensor_of(DType::f32, {4}, {unit, unit * 1.5, unit * 0.9, unit * 1.2});
    q.a2 = test::tensor_of(DType::f32, {1}, {unit * 0.7});
    q.coded.weights.a1_scale = q.a1.view();
    q.coded.weights.a2_scale = q.a2.view();
  }
  return q;
}

Tensor run_reference(const ExpertCase& c) {
  const auto executor = make_executor(2);
  const auto part = test::make_experts(builtin_experts(), kReference, c.problem);
  const auto& experts = dynamic_cast<const ModularExperts&>(*part);
  const auto packed = experts.pack(c.weights, Stream::cpu(*executor));
  return test::run_standard(experts, c, *packed, *executor);
}

using FloatRows = std::vector<std::vector<float>>;

/// matrix [n, cols] . x in double.
std::vector<float> product_in_double(const ConstTensorView& matrix, const std::vector<float>& x) {
  std::vector<float> out;
  for (std::int64_t n = 0; n < matrix.size(0); ++n) {
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i)
      sum += static_cast<double>(matrix.at(n).as<float>()[i]) * static_cast<double>(x[i]);
    out.push_back(static_cast<float>(sum));
  }
  return out;
}

/// FloatRows of x through the codes of `key`; `scale(row)` where they are fixed, one for all rows where they span the
/// batch.
template <class F>
void recode(FloatRows& rows, K key, F scale) {
  const quant::ActivationQuantiser quantiser(key);
  quant::GroupStats stats;
  for (const auto& row : rows) stats.add(row.data(), static_cast<std::int64_t>(row.size()));
  for (std::size_t r = 0; r < rows.size(); ++r)
    quantiser.round_trip(rows[r].data(), static_cast<std::int64_t>(rows[r].size()),
                         quantiser.spans_the_batch() ? quantiser.batch_scale(stats) : scale(r));
}

/// [M, k, H]: quantise, first product, activation, quantise again, second product.
std::vector<double> expected_quantised_rows(const QuantisedCase& q) {
  const MoeConfig& moe = q.plain.moe();
  const K key = q.coded.problem.quant.activations;
  FloatRows rows;
  std::vector<std::int64_t> expert;
  for (std::int64_t m = 0; m < q.plain.topk_ids.view().size(0); ++m)
    for (std::int64_t j = 0; j < moe.top_k; ++j) {
      const auto* x = q.plain.hidden_states.view().at(m).as<float>();
      rows.emplace_back(x, x + moe.hidden_size);
      expert.push_back(static_cast<std::int64_t>(test::at(q.plain.topk_ids, {m, j})));
    }
  recode(rows, key, [&](std::size_t r) { return q.a1 ? q.a1.as<float>()[expert[r]] : 1.0f; });
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::vector<float> both = product_in_double(q.decoded.w13.view().at(expert[r]), rows[r]);
    rows[r].clear();
    for (std::size_t i = 0; i < both.size(); i += 2)
      rows[r].push_back(static_cast<float>(test::oracle_activation(moe, both[i], both[i + 1])));
  }
  recode(rows, key, [&](std::size_t) { return q.a2 ? q.a2.as<float>()[0] : 1.0f; });
  std::vector<double> out;
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (const float v : product_in_double(q.decoded.w2.view().at(expert[r]), rows[r])) out.push_back(v);
  return out;
}

TEST(ReferenceQuantised, WeightsOfEveryKeyAreThoseThatTheirCodesMean) {
  for (K key : all_quant_keys()) {
    if (!quant::supports_key(key, QuantRole::weights)) continue;
    const QuantisedCase q = make_quantised(key, K::none);
    EXPECT_TRUE(test::same_bytes(run_reference(q.coded), run_reference(q.decoded))) << name_of(key);
    if (key != K::none) {
      EXPECT_GT(test::rel_error(run_reference(q.coded), test::values(run_reference(q.plain))), 1e-3) << name_of(key);
    }
  }
}

TEST(ReferenceQuantised, ActivationsOfEveryKeyGoThroughTheirCodesTwice) {
  for (K weights : {K::none, K::fp8_tensor, K::mxfp4})
    for (K key : all_quant_keys()) {
      if (key == K::none || !quant::supports_key(key, QuantRole::activations)) continue;
      const QuantisedCase q = make_quantised(weights, key);
      const Tensor y = run_reference(q.coded);
      EXPECT_LT(test::rel_error(y, expected_quantised_rows(q)), 1e-3) << name_of(weights) << " x " << name_of(key);
      EXPECT_GT(test::rel_error(y, test::values(run_reference(q.decoded))), 4e-3)
          << name_of(weights) << " x " << name_of(key);
    }
}

/// 75 rows are more than are computed together.
TEST(ReferenceQuantised, OneScaleSpansTheWholeBatch) {
  for (K key : {K::fp8_tensor_dynamic, K::int8_tensor_dynamic}) {
    QuantisedCase q = make_quantised(K::fp8_tensor, key, 25);
    test::set(q.plain.hidden_states, {24, 7}, 300.0);  // The last row decides.
    EXPECT_LT(test::rel_error(run_reference(q.coded), expected_quantised_rows(q)), 2e-3) << name_of(key);
  }
}

/// Scales that experts, or the whole batch, must bring cannot be made before rows travel; those of a row can.
TEST(ReferenceQuantised, AsksForActivationsAsTheyAreWhereARowDoesNotSay) {
  Problem problem = make_quantised(K::none, K::fp8_tensor).coded.problem;
  const auto expects = [&](const std::string& part) {
    return test::make_experts(builtin_experts(), part, problem)->expects_unquantized_inputs();
  };
  for (K key : {K::fp8_tensor, K::fp8_tensor_dynamic, K::nvfp4, K::nvfp4_token, K::int8_tensor}) {
    problem.quant.activations = key;
    EXPECT_TRUE(expects(kReference)) << name_of(key);
  }
  for (K key : {K::fp8_token, K::fp8_block128, K::mxfp8, K::mxfp4, K::int8_token}) {
    problem.quant.activations = key;
    EXPECT_FALSE(expects(kReference)) << name_of(key);
  }
  problem.quant.activations = K::none;
  EXPECT_FALSE(expects(kReference));
}

TEST(ReferenceQuantised, UpdateDecodesAgain) {
  const QuantisedCase q = make_quantised(K::nvfp4, K::nvfp4);
  const auto executor = make_inline_executor();
  const auto part = test::make_experts(builtin_experts(), kReference, q.coded.problem);
  const auto& experts = dynamic_cast<const ModularExperts&>(*part);
  const auto packed = experts.pack(q.coded.weights, Stream::cpu(*executor));
  const Tensor before = test::run_standard(experts, q.coded, *packed, *executor);
  for (std::int64_t e = 0; e < 4; ++e) q.a1.as<float>()[e] *= 3;
  experts.update(*packed, q.coded.weights, Stream::cpu(*executor));
  EXPECT_FALSE(test::same_bytes(test::run_standard(experts, q.coded, *packed, *executor), before));
  for (std::int64_t e = 0; e < 4; ++e) q.a1.as<float>()[e] /= 3;
  experts.update(*packed, q.coded.weights, Stream::cpu(*executor));
  EXPECT_TRUE(test::same_bytes(test::run_standard(experts, q.coded, *packed, *executor), before));
}

TEST(ReferenceQuantised, WeightsThatDoNotFitAreRefusedWhenPacked) {
  QuantisedCase q = make_quantised(K::int4_group32_zp, K::fp8_tensor);
  const auto executor = make_inline_executor();
  const auto part = test::make_experts(builtin_experts(), kReference, q.coded.problem);
  const auto message = [&](auto change) {
    ExpertWeights w = q.coded.weights;
    change(w);
    return test::message_of([&] { part->pack(w, Stream::cpu(*executor)); });
  };
  EXPECT_EQ(message([](ExpertWeights&) {}), "no error");
  EXPECT_THAT(message([](ExpertWeights& w) { w.w2_zero_point.reset(); }), HasSubstr("w2_zero_point: missing"));
  EXPECT_THAT(message([](ExpertWeights& w) { w.a1_scale.reset(); }), HasSubstr("a1_scale: missing"));
  EXPECT_THAT(message([&](ExpertWeights& w) { w.w13 = q.plain.weights.w13; }), HasSubstr("w13: given f32"));
}

TEST(SupportsQuantisation, EveryPairIsHonouredOrRefusedByName) {
  Problem problem;
  problem.moe = quantisable_config();
  for (K weights : all_quant_keys())
    for (K activations : all_quant_keys()) {
      problem.quant = {weights, activations};
      const Support support = experts::supports_all_on_cpu(problem);
      const bool w = static_cast<bool>(quant::supports_key(weights, QuantRole::weights));
      const bool a = static_cast<bool>(quant::supports_key(activations, QuantRole::activations));
      EXPECT_EQ(static_cast<bool>(support), w && a) << name_of(weights) << " x " << name_of(activations);
      if (!support) {
        EXPECT_THAT(support.reason(), HasSubstr(std::string(name_of(w ? activations : weights))));
      }
    }
}

TEST(SupportsQuantisation, GroupsAndRanks) {
  Problem problem;
  problem.moe = quantisable_config();
  problem.moe.intermediate_size = 72;
  problem.quant.weights = K::int4_group64;
  EXPECT_THAT(experts::supports_all_on_cpu(problem).reason(), HasSubstr("intermediate_size 72"));
  problem.quant = {K::none, K::nvfp4_token};
  EXPECT_THAT(experts::supports_all_on_cpu(problem).reason(), HasSubstr("multiples of 16"));
  problem.quant = {K::fp8_block128, K::fp8_block128};
  EXPECT_TRUE(experts::supports_all_on_cpu(problem));
  problem.quant.activations = K::fp8_tensor_dynamic;
  EXPECT_TRUE(experts::supports_all_on_cpu(problem));
  problem.parallel = make_parallel(2, 0, 1, 0, 1, 0, 1, true, All2All::none);
  EXPECT_THAT(experts::supports_all_on_cpu(problem).reason(), HasSubstr("each of 2 ranks"));
}

}  // namespace
}  // namespace conclave
