// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Every fast CPU part against the oracle: sizes around every tile, activations, layouts, biases, dtypes of weights.
#include "experts/cpu/grouped_case.hpp"

namespace conclave::test {
namespace {

using CpuParts = CpuPart;

TEST_P(CpuParts, EveryNumberOfTokensAcrossTileBoundaries) {
  // 2 experts of 3 tokens each up to 130: every row count from one to several row blocks of the smallest tile.
  for (std::int64_t tokens : {0, 1, 2, 3, 5, 6, 7, 8, 12, 13, 16, 17, 25, 33, 64, 130}) {
    const GroupedCase c = grouped_case(dtype(), {.tokens = tokens, .experts = 3, .top_k = 2, .hidden = 34, .inner = 21},
                                       static_cast<std::uint64_t>(tokens) + 7);
    EXPECT_LT(error_of(GetParam(), c), tolerance()) << tokens << " tokens";
  }
}

TEST_P(CpuParts, AnyWidth) {
  const std::pair<std::int64_t, std::int64_t> widths[] = {{1, 1},    {2, 3},    {15, 16},  {16, 15},
                                                          {17, 31},  {31, 33},  {40, 64},  {65, 40},
                                                          {127, 70}, {511, 18}, {24, 511}, {129, 176}};
  for (const auto& [hidden, inner] : widths) {
    const GroupedCase c =
        grouped_case(dtype(), {.tokens = 9, .experts = 4, .top_k = 3, .hidden = hidden, .inner = inner}, 3);
    EXPECT_LT(error_of(GetParam(), c), 2 * tolerance()) << "hidden " << hidden << " inner " << inner;
  }
}

TEST_P(CpuParts, SeveralBlocksOfKAndPanelGroups) {
  // k crosses k_block (256 or 512) twice with a rest, and panels make groups of four with a rest. One expert, so that
  // the blocked path runs.
  for (std::int64_t tokens : {3, 40}) {
    GroupedCase c = grouped_case(dtype(), {.tokens = tokens, .experts = 1, .top_k = 1, .hidden = 1061, .inner = 87}, 5);
    EXPECT_LT(error_of(GetParam(), c), 2 * tolerance()) << tokens << " tokens";
    c = grouped_case(dtype(), {.tokens = tokens, .experts = 1, .top_k = 1, .hidden = 70, .inner = 1100}, 6);
    EXPECT_LT(error_of(GetParam(), c), 2 * tolerance()) << tokens << " tokens, wide inside";
  }
}

TEST_P(CpuParts, ManyRowsOfOneExpert) {
  // More rows than one row block of any engine (96, 192, 256).
  GroupedCase c = grouped_case(dtype(), {.tokens = 300, .experts = 3, .top_k = 1, .hidden = 19, .inner = 22}, 8);
  for (std::int64_t t = 0; t < 290; ++t) set(c.ids, {t, 0}, 1);
  EXPECT_LT(error_of(GetParam(), c), tolerance());
}

void set_constants(MoeConfig& moe) {
  ActivationParams& p = moe.activation_params;
  if (moe.activation == Activation::silu) p.limit = 0.9;
  if (moe.activation == Activation::swiglustep) p.limit = 0.6;
  if (moe.activation == Activation::swigluoai_uninterleave) {
    p.alpha = 1.3;
    p.beta = 0.4;
    p.limit = 0.9;
  }
  if (moe.activation == Activation::situ) {
    p.beta = 1.5;
    p.linear_beta = 2.5;
  }
}

TEST_P(CpuParts, EveryActivationLayoutAndBias) {
  for (Activation activation : all_activations())
    for (W13Layout layout : {W13Layout::gate_up, W13Layout::up_gate, W13Layout::interleaved}) {
      GroupedCase c;
      c.problem = grouped_problem(dtype(), {.experts = 3, .top_k = 2, .hidden = 37, .inner = 43});
      c.moe().activation = activation;
      c.moe().w13_layout = layout;
      set_constants(c.moe());
      c.moe().has_w13_bias = layout != W13Layout::up_gate;
      c.moe().has_w2_bias = layout != W13Layout::interleaved;
      fill_case(c, 7, 11);
      EXPECT_LT(error_of(GetParam(), c), 2 * tolerance()) << name_of(activation) << " " << name_of(layout);
      if (!is_gated(activation)) break;
    }
}

TEST_P(CpuParts, SiluIsExactFarFromZero) {
  // Gates from -100 to 100: where exp overflows, where it vanishes, and between.
  GroupedCase c;
  c.problem = grouped_problem(dtype(), {.experts = 2, .top_k = 1, .hidden = 16, .inner = 64});
  fill_case(c, 20, 13, 40.0);
  EXPECT_LT(error_of(GetParam(), c), 2 * tolerance());
}

TEST_P(CpuParts, WidensWeightsOnlyWhereItSaysSo) {
  for (DType weight_dtype : {DType::f32, DType::bf16, DType::f16}) {
    GroupedCase c;
    c.problem = grouped_problem(dtype(), {.experts = 3, .top_k = 2, .hidden = 67, .inner = 29});
    c.moe().weight_dtype = weight_dtype;
    const Support support = part_named(GetParam()).supports(c.problem);
    EXPECT_EQ(static_cast<bool>(support), dtype() == DType::f32 || weight_dtype == dtype());
    if (!support) {
      EXPECT_NE(support.reason().find(std::string(name_of(weight_dtype))), std::string::npos) << support.reason();
      continue;
    }
    fill_case(c, 11, 17);
    EXPECT_LT(error_of(GetParam(), c), tolerance()) << name_of(weight_dtype);
  }
}

TEST_P(CpuParts, AddsTheSecondBiasOnOneTensorParallelRank) {
  GroupedCase c;
  c.problem = grouped_problem(dtype(), {.experts = 2, .top_k = 1, .hidden = 21, .inner = 10});
  c.moe().has_w2_bias = true;
  fill_case(c, 4, 19);
  c.problem.parallel.tp_size = 2;
  c.problem.parallel.tp_rank = 1;
  GroupedCase without = c;
  without.w2_bias = {};
  GroupedRunner runner(GetParam(), c, 1);
  EXPECT_LT(rel_error(runner.run(c), without.expected()), 2 * tolerance());
}

CONCLAVE_FOR_EACH_CPU_PART(CpuParts);

TEST(CpuPartsList, RefusesWithTheValueInTheWay) {
  for (const Entry<Experts>& part : grouped_parts()) {
    const auto refusal = [&](auto change) {
      Problem p = grouped_problem(dtype_of(part.name), {});
      p.device.cpu = {true, true, true, true, true, true};
      EXPECT_TRUE(part.supports(p)) << part.name << ": " << part.supports(p).reason();
      change(p);
      EXPECT_FALSE(part.supports(p)) << part.name;
      return part.supports(p).reason();
    };
    EXPECT_NE(refusal([](Problem& p) { p.device.device.type = DeviceType::cuda; }).find("cuda"), std::string::npos);
    EXPECT_NE(refusal([](Problem& p) { p.device.cpu = {}; }).find("CPU lacks"), std::string::npos);
    EXPECT_NE(refusal([](Problem& p) { p.quant.weights = QuantKey::mxfp4; }).find("mxfp4"), std::string::npos);
    EXPECT_NE(
        refusal([](Problem& p) { p.moe.dtype = p.moe.dtype == DType::f32 ? DType::f16 : DType::f32; }).find("dtype"),
        std::string::npos);
    EXPECT_NE(refusal([](Problem& p) { p.moe.activation = Activation::situ; }).find("beta"), std::string::npos);
  }
}

TEST(CpuPartsList, EveryInstructionSetIsRefusedByItself) {
  // Each part looks at its own flag: all flags but one, and exactly the parts of that one refuse.
  const auto parts = grouped_parts();
  ASSERT_EQ(parts.size(), 8u);
  const auto refusing = [&](bool CpuFeatures::*flag) {
    std::string names;
    for (const Entry<Experts>& part : parts) {
      Problem p = grouped_problem(dtype_of(part.name), {});
      p.device.cpu = {true, true, true, true, true, true};
      p.device.cpu.*flag = false;
      if (!part.supports(p)) names += part.name.substr(12) + " ";
    }
    return names;
  };
  EXPECT_EQ(refusing(&CpuFeatures::amx_bf16), "bf16_amx ");
  EXPECT_EQ(refusing(&CpuFeatures::avx512_bf16), "bf16_avx512_bf16 ");
  EXPECT_EQ(refusing(&CpuFeatures::avx512), "bf16_avx512 f16_avx512 f32_avx512 ");
  EXPECT_EQ(refusing(&CpuFeatures::avx2), "bf16_avx2 f16_avx2 f32_avx2 ");

  // A unit that is there but slow runs what is asked of it, and is not preferred.
  Problem p = grouped_problem(DType::bf16, {});
  p.device.cpu = {true, true, true, true, true, true, true};
  for (const Entry<Experts>& part : parts) {
    if (dtype_of(part.name) != DType::bf16) continue;
    EXPECT_TRUE(part.supports(p)) << part.name;
    EXPECT_EQ(part.supports(p).preferred(), part.name != "experts/cpu_bf16_avx512_bf16") << part.name;
  }
}

TEST(CpuPartsList, DescribesDecodeAndPrefill) {
  const Problem p = grouped_problem(DType::f32, {.experts = 8, .top_k = 2});
  const auto part = part_named("experts/cpu_f32_avx2").make({p, nullptr});
  EXPECT_NE(part->describe(1).find("6x16 tiles"), std::string::npos) << part->describe(1);
  EXPECT_NE(part->describe(1).find("decode"), std::string::npos) << part->describe(1);
  EXPECT_NE(part->describe(512).find("prefill"), std::string::npos) << part->describe(512);
}

}  // namespace
}  // namespace conclave::test
