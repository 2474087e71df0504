// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Parts that multiply codes: nearly what the f32 part makes of weights that were decoded before.
#include <cmath>
#include <cstring>
#include <limits>

#include "experts/cpu/grouped_case.hpp"
#include "quant/expert_matrices.hpp"
#include "quant/format.hpp"
#include "support/message_of.hpp"

namespace conclave::test {
namespace {

bool part_takes(const Entry<Experts>& part, QuantKey key) {
  Problem p = grouped_problem(DType::f32, {.hidden = 256, .inner = 256});
  p.quant.weights = key;
  p.device.cpu = {true, true, true, true, true, true};
  return static_cast<bool>(part.supports(p));
}

struct Row {
  std::string part;
  QuantKey key;
};

std::vector<Row> rows_of_parts() {
  std::vector<Row> rows;
  for (const Entry<Experts>& part : grouped_parts(false))
    for (const QuantKey key : all_quant_keys())
      if (key != QuantKey::none && part_takes(part, key)) rows.push_back({part.name, key});
  return rows;
}

/// `c` with its weights in codes of `key`.
void quantise_case(GroupedCase& c, QuantKey key, bool split = false) {
  ExpertWeights plain;
  plain.w13 = c.w13;
  plain.w2 = c.w2;
  c.quantised = quantise_experts(c.moe(), key, plain, split);
  c.problem.quant.weights = key;
}

/// Unquantised f32 weights that hold the values of the codes.
GroupedCase decoded(const GroupedCase& c) {
  GroupedCase out = c;
  out.quantised.reset();
  out.problem.quant = {};
  const ExpertWeights w = c.expert_weights();
  const MoeConfig& moe = c.problem.moe;
  out.w13 = Tensor(DType::f32, {w.w13.size(0), c.w13.view().size(1), moe.hidden_size});
  out.w2 = Tensor(DType::f32, {w.w2.size(0), moe.hidden_size, moe.intermediate_size});
  for (std::int64_t e = 0; e < w.w13.size(0); ++e) {
    for (const quant::ExpertMatrix& part : quant::w13_matrices(moe, c.problem.quant.weights, w, e)) {
      TensorView rows = out.w13.view().at(e).narrow(0, part.first_row, 1);
      rows.shape[0] = part.matrix.rows;
      rows.strides[0] *= part.row_step;
      dequantise(part.matrix, rows);
    }
    for (const quant::ExpertMatrix& part : quant::w2_matrices(moe, c.problem.quant.weights, w, e))
      dequantise(part.matrix, out.w2.view().at(e));
  }
  out.problem.moe.weight_dtype = DType::f32;
  return out;
}

class ScaledParts : public testing::TestWithParam<Row> {
 protected:
  void SetUp() override {
    // Widths that the groups divide: what is left to refuse is the instruction set.
    const Problem fitting = problem({.hidden = width(40), .inner = width(24)});
    const Support support = part_named(GetParam().part).supports(fitting);
    if (!support) GTEST_SKIP() << GetParam().part << ": " << support.reason();
  }
  Problem problem(const Sizes& s, DType dtype = DType::f32) const {
    Problem p = grouped_problem(dtype, s);
    p.moe.weight_dtype = DType::f32;
    p.quant.weights = GetParam().key;
    return p;
  }
  GroupedCase make(const Sizes& s, DType dtype = DType::f32, bool split = false) const {
    GroupedCase c;
    c.problem = problem(s, dtype);
    fill_case(c, s.tokens, 5);
    quantise_case(c, GetParam().key, split);
    return c;
  }
  /// AVX2 multiplies 4-bit codes by rows of 20 bits, and everything else is f32.
  double limit() const {
    const bool four_bits = quant::format_of(GetParam().key, QuantRole::weights).bits == 4;
    return four_bits && GetParam().part.find("avx2") != std::string::npos ? 4e-6 : 1e-6;
  }
  std::string f32_part() const {
    return GetParam().part.find("avx512") != std::string::npos ? "experts/cpu_f32_avx512" : "experts/cpu_f32_avx2";
  }
  /// Keys whose groups must divide the columns: the widths are multiples of `group`, odd ones elsewhere.
  std::int64_t width(std::int64_t about) const {
    const quant::Format f = quant::format_of(GetParam().key, QuantRole::weights);
    if (f.group.cols < 0 || f.short_last_group) return f.bits == 4 ? about + about % 2 : about;
    return (about + f.group.cols - 1) / f.group.cols * f.group.cols;
  }
};

TEST_P(ScaledParts, AsTheF32PartOnDecodedWeights) {
  // Decode, several panels at once, tiles of every size, several row blocks; k over one block and over two.
  for (const Sizes& s : {Sizes{.tokens = 1, .experts = 3, .top_k = 2, .hidden = width(70), .inner = width(43)},
                         Sizes{.tokens = 9, .experts = 3, .top_k = 2, .hidden = width(130), .inner = width(300)},
                         Sizes{.tokens = 70, .experts = 2, .top_k = 1, .hidden = width(600), .inner = width(40)}}) {
    const GroupedCase c = make(s);
    GroupedRunner scaled(GetParam().part, c, 2);
    const GroupedCase plain = decoded(c);
    GroupedRunner f32(f32_part(), plain, 2);
    const Tensor got = scaled.run(c);
    const Tensor want = f32.run(plain);
    // Not the same bits: here a scale multiplies the sum of its group, there each weight.
    EXPECT_LT(rel_error(got, values(want)), limit())
        << s.tokens << " tokens, hidden " << s.hidden << ", inner " << s.inner;
  }
}

TEST_P(ScaledParts, EveryActivationType) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const GroupedCase c =
        make({.tokens = 11, .experts = 4, .top_k = 3, .hidden = width(33), .inner = width(70)}, dtype);
    EXPECT_LT(rel_error(GroupedRunner(GetParam().part, c, 2).run(c), decoded(c).expected()),
              std::max(tolerance_of(dtype), limit()))
        << name_of(dtype);
  }
}

TEST_P(ScaledParts, LayoutsBiasesAndGatesWithScalesOfTheirOwn) {
  const bool tensor_wide = quant::format_of(GetParam().key, QuantRole::weights).scale_is_tensor_wide();
  for (const W13Layout layout : {W13Layout::gate_up, W13Layout::up_gate, W13Layout::interleaved}) {
    GroupedCase c;
    c.problem = problem({.tokens = 7, .experts = 3, .top_k = 2, .hidden = width(50), .inner = width(36)});
    c.moe().w13_layout = layout;
    c.moe().has_w13_bias = c.moe().has_w2_bias = true;
    fill_case(c, 7, 23);
    quantise_case(c, GetParam().key, tensor_wide || GetParam().key == QuantKey::nvfp4);
    EXPECT_LT(rel_error(GroupedRunner(GetParam().part, c, 2).run(c), decoded(c).expected()), limit())
        << name_of(layout);
  }
}

TEST_P(ScaledParts, BitwiseRepeatAndBatchInvariance) {
  const GroupedCase c = make({.tokens = 30, .experts = 3, .top_k = 2, .hidden = width(64), .inner = width(48)});
  GroupedRunner runner(GetParam().part, c, 2);
  const Tensor all = runner.run(c);
  const ConstTensorView x = c.x, ids = c.ids, weights = c.weights;
  for (const std::int64_t first : {0, 13, 29}) {
    const Tensor one = runner.run(c, x.narrow(0, first, 1), ids.narrow(0, first, 1), weights.narrow(0, first, 1));
    EXPECT_EQ(std::memcmp(one.view().data, all.view().at(first).data, static_cast<std::size_t>(one.view().bytes())), 0);
  }
}

/// Of each row on its own: a small one must not be lost beside a large one.
TEST_P(ScaledParts, RowsOfEveryMagnitude) {
  const std::int64_t hidden = width(96);
  GroupedCase c = make({.tokens = 6, .experts = 2, .top_k = 2, .hidden = hidden, .inner = width(64)});
  float* x = c.x.as<float>();
  const float factors[] = {1, 0, 1e-5f, 1e10f, 1, 1};
  for (std::int64_t r = 0; r < 6; ++r)
    for (std::int64_t k = 0; k < hidden; ++k) x[r * hidden + k] *= factors[r];
  x[4 * hidden + 7] = 1000;
  // What one step of the smallest number is, and halves of it.
  for (std::int64_t k = 0; k < hidden; ++k) x[5 * hidden + k] = std::ldexp(1.0f, -static_cast<int>(k % 30));
  const Tensor got = GroupedRunner(GetParam().part, c, 2).run(c);
  const std::vector<double> have = values(got), want = decoded(c).expected();
  for (std::int64_t r = 0; r < 6; ++r) {
    double error = 0, size = 0;
    for (std::int64_t j = r * hidden; j < (r + 1) * hidden; ++j) {
      error += std::pow(have[static_cast<std::size_t>(j)] - want[static_cast<std::size_t>(j)], 2);
      size += std::pow(want[static_cast<std::size_t>(j)], 2);
    }
    EXPECT_LE(std::sqrt(error), 2 * limit() * std::sqrt(size)) << "row " << r;
    EXPECT_EQ(size == 0, r == 1) << "row " << r;
  }
}

TEST_P(ScaledParts, OneRowThatIsNotFinite) {
  const std::int64_t hidden = width(96);
  GroupedCase c = make({.tokens = 5, .experts = 2, .top_k = 2, .hidden = hidden, .inner = width(64)});
  GroupedRunner runner(GetParam().part, c, 2);
  const std::vector<double> before = values(runner.run(c));
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    c.x.as<float>()[2 * hidden + 40] = bad;
    const std::vector<double> after = values(runner.run(c));
    for (std::size_t i = 0; i < after.size(); ++i) {
      if (static_cast<std::int64_t>(i) / hidden == 2) {
        EXPECT_FALSE(std::isfinite(after[i])) << bad << " at " << i;
      } else {
        EXPECT_EQ(after[i], before[i]) << bad << " at " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, ScaledParts, testing::ValuesIn(rows_of_parts()), [](const auto& row) {
  return row.param.part.substr(12) + "_" + std::string(name_of(row.param.key));
});

TEST(ScaledPartsList, EveryWeightOnlyKeyHasAFastPart) {
  for (const char* isa : {"avx2", "avx512"})
    for (const QuantKey key : all_quant_keys()) {
      if (key == QuantKey::none || !quant::supports_key(key, QuantRole::weights)) continue;
      std::size_t parts = 0;
      for (const Row& row : rows_of_parts()) parts += row.key == key && row.part.find(isa) != std::string::npos;
      EXPECT_EQ(parts, 1U) << name_of(key) << " " << isa;
    }
}

TEST(ScaledPartsList, RefusesActivationsInCodesAndOtherKeys) {
  Problem p = grouped_problem(DType::bf16, {.hidden = 256, .inner = 256});
  const Entry<Experts> part = part_named("experts/cpu_int8_avx2");
  p.quant.weights = QuantKey::fp8_channel;
  EXPECT_NE(part.supports(p).reason().find("weights fp8_channel x activations none"), std::string::npos);
  p.quant = {QuantKey::int8_channel, QuantKey::int8_token};
  EXPECT_NE(part.supports(p).reason().find("activations int8_token"), std::string::npos);
}

TEST(ScaledPartsList, RefusesColumnsThatAGroupDoesNotDivide) {
  Problem p = grouped_problem(DType::bf16, {.hidden = 64, .inner = 48});
  p.quant.weights = QuantKey::mxfp4;
  p.device.cpu = {true, true, true, true, true, true};
  EXPECT_NE(part_named("experts/cpu_mxfp4_avx2").supports(p).reason().find("intermediate_size 48"), std::string::npos);
}

TEST(ScaledPartsList, NamesTheElementThatIsNaN) {
  const Support support = part_named("experts/cpu_fp8_avx2").supports([] {
    Problem p = grouped_problem(DType::f32, {});
    p.quant.weights = QuantKey::fp8_channel;
    return p;
  }());
  if (!support) GTEST_SKIP() << support.reason();
  GroupedCase c = grouped_case(DType::f32, {.experts = 3, .top_k = 1, .hidden = 20, .inner = 12});
  quantise_case(c, QuantKey::fp8_channel);
  c.quantised->w2.as<std::uint8_t>()[(2 * 20 + 7) * 12 + 5] = 0xFF;
  EXPECT_EQ(message_of([&] { GroupedRunner("experts/cpu_fp8_avx2", c, 2); }),
            "w2: element [2, 7, 5] is NaN, expected a number");
}

TEST(ScaledPartsList, RefusesScalesThatDecodingWouldOverflow) {
  GroupedCase c = grouped_case(DType::f32, {.experts = 3, .top_k = 1, .hidden = 20, .inner = 12});
  c.problem.quant.weights = QuantKey::fp8_channel;
  if (const Support support = part_named("experts/cpu_fp8_avx2").supports(c.problem); !support)
    GTEST_SKIP() << support.reason();
  quantise_case(c, QuantKey::fp8_channel);
  float& scale = c.quantised->w2_scale->as<float>()[4];
  scale = 0x1.8p46f;
  EXPECT_LT(rel_error(GroupedRunner("experts/cpu_fp8_avx2", c, 2).run(c), decoded(c).expected()), 1e-6);
  scale = 0x1p47f;
  EXPECT_EQ(message_of([&] { GroupedRunner("experts/cpu_fp8_avx2", c, 2); }),
            "w2_scale: given a scale of 140737490000000, expected less than 2^47");
}

}  // namespace
}  // namespace conclave::test
