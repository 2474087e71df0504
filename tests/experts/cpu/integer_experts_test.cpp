// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Parts that multiply int8 codes: the reference's numbers, the same bits from every instruction set. The unit for four
// products at a time is emulated in plain C++ here, so that what surrounds it is tested on every x86-64 CPU.
#include <cstring>

#include "experts/cpu/grouped_case.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

#include "cpu/float_convert.hpp"
#include "experts/cpu/grouped_experts.hpp"
#include "experts/cpu/integer_part.hpp"

namespace conclave::test {
namespace {

/// Four lanes that every x86-64 CPU has, and vpdpbusd by its definition.
struct EmulatedVnni {
  using Vec = __m128;
  using Weight = std::uint8_t;
  using Input = std::uint8_t;
  static constexpr int kLanes = 4;
  static constexpr int kSums = 12;
  static constexpr int kWeightGroup = 4;
  static constexpr int kSteps = 1;
  static constexpr int kInputOffset = 128;

  static Vec load(const float* p) { return _mm_loadu_ps(p); }
  static void store(float* p, Vec v) { _mm_storeu_ps(p, v); }
  static Vec broadcast(const float* p) { return _mm_set1_ps(*p); }
  static Vec set(float x) { return _mm_set1_ps(x); }
  static Vec multiply_add(Vec a, Vec b, Vec c) {
    for (int i = 0; i < kLanes; ++i) c[i] = std::fma(a[i], b[i], c[i]);
    return c;
  }
  static Vec at_most(Vec x, Vec bound) { return _mm_min_ps(bound, x); }
  static Vec at_least(Vec x, Vec bound) { return _mm_max_ps(bound, x); }
  static Vec scale(Vec x, Vec shifted) {
    const __m128i n = _mm_slli_epi32(_mm_castps_si128(shifted), 23);
    return _mm_castsi128_ps(_mm_add_epi32(_mm_castps_si128(x), n));
  }
  static Vec load_bf16(const std::uint16_t* p) { return load_any(p, DType::bf16); }
  static Vec load_f16(const std::uint16_t* p) { return load_any(p, DType::f16); }
  static void store_bf16(std::uint16_t* p, Vec v) { store_any(p, v, DType::bf16); }
  static void store_f16(std::uint16_t* p, Vec v) { store_any(p, v, DType::f16); }

  static Vec input(const Input* x) {
    std::int32_t four;
    std::memcpy(&four, x, sizeof(four));
    return _mm_castsi128_ps(_mm_set1_epi32(four));
  }
  template <int>
  static Vec weight(const Weight* w) {
    return _mm_castsi128_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w)));
  }
  static Vec product(Vec in, Vec w, Vec sum) {
    std::uint8_t x[16];
    std::int8_t y[16];
    std::uint32_t sums[4];
    std::memcpy(x, &in, sizeof(x));
    std::memcpy(y, &w, sizeof(y));
    std::memcpy(sums, &sum, sizeof(sums));
    for (int i = 0; i < 16; ++i) sums[i / 4] += static_cast<std::uint32_t>(std::int32_t{x[i]} * std::int32_t{y[i]});
    std::memcpy(&sum, sums, sizeof(sums));
    return sum;
  }

 private:
  static Vec load_any(const std::uint16_t* p, DType dtype) {
    float lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = cpu::load_element(p, dtype, i);
    return load(lanes);
  }
  static void store_any(std::uint16_t* p, Vec v, DType dtype) {
    for (int i = 0; i < kLanes; ++i) cpu::store_element(v[i], dtype, i, p);
  }
};

constinit const experts::grouped::Engine kEmulated = experts::grouped::make_integer_engine<EmulatedVnni>(
    {"experts/emulated_vnni", "emulated", &CpuFeatures::avx2, "nothing that it needs"});

const char* const kEmulatedName = "emulated";

Entry<Experts> integer_part(const std::string& isa) {
  return isa == kEmulatedName ? experts::grouped::entry_of(kEmulated) : part_named("experts/cpu_int8_int8_" + isa);
}

Problem integer_problem(const Sizes& s, DType dtype, QuantKey key) {
  Problem p = grouped_problem(dtype, s);
  p.moe.weight_dtype = DType::f32;
  p.quant = {key, QuantKey::int8_token};
  return p;
}

void quantise_weights(GroupedCase& c, bool split = false) {
  ExpertWeights plain;
  plain.w13 = c.w13;
  plain.w2 = c.w2;
  c.quantised = quantise_experts(c.moe(), c.problem.quant.weights, plain, split);
}

GroupedCase integer_case(const Sizes& s, DType dtype = DType::f32, QuantKey key = QuantKey::int8_channel) {
  GroupedCase c;
  c.problem = integer_problem(s, dtype, key);
  fill_case(c, s.tokens, 5);
  quantise_weights(c);
  return c;
}

/// The reference part's rows, weighted and summed.
std::vector<double> reference(const GroupedCase& c) {
  const auto executor = make_executor(2);
  const auto part = part_named("experts/reference_standard").make(PartContext{c.problem, nullptr});
  const auto packed = part->pack(c.expert_weights(), Stream::cpu(*executor));
  const std::int64_t tokens = c.x.view().size(0), top_k = c.problem.moe.num_slots(), hidden = c.problem.moe.hidden_size;
  PoisonedArena memory([&](Arena& arena) { part->take_buffers(arena, tokens); });
  Arena arena = memory.arena();
  const ExpertsBuffers buffers = part->take_buffers(arena, tokens);
  ExpertsInput input;
  input.hidden_states = c.x;
  input.topk_ids = c.ids;
  input.topk_weights = c.weights;
  dynamic_cast<const ModularExperts&>(*part).apply(input, *packed, buffers, Stream::cpu(*executor));
  std::vector<double> out(static_cast<std::size_t>(tokens * hidden), 0.0);
  for (std::int64_t m = 0; m < tokens; ++m)
    for (std::int64_t j = 0; j < top_k; ++j)
      for (std::int64_t h = 0; h < hidden; ++h)
        out[static_cast<std::size_t>(m * hidden + h)] += at(c.weights, {m, j}) * at(buffers.output, {m, j, h});
  return out;
}

class IntegerParts : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const Support support = integer_part(GetParam()).supports(integer_problem({}, DType::f32, QuantKey::int8_channel));
    if (!support) GTEST_SKIP() << GetParam() << ": " << support.reason();
  }
  Tensor run(const GroupedCase& c) const { return GroupedRunner(integer_part(GetParam()), c, 2).run(c); }

  /// Nearly every row agrees to the rounding of sums. An activation that falls between two codes may take the other one
  /// after its last bit: a row of that kind is off by one step of one of its codes.
  void expect_reference(const GroupedCase& c, double tolerance, const std::string& what) const {
    const Tensor got = run(c);
    const std::vector<double> want = reference(c);
    const std::int64_t tokens = got.view().size(0), hidden = got.view().size(1);
    std::int64_t other_codes = 0;
    for (std::int64_t m = 0; m < tokens; ++m) {
      const auto first = want.begin() + m * hidden;
      const double error = rel_error(got.view().at(m), std::vector<double>(first, first + hidden));
      EXPECT_LT(error, tolerance + 6e-3) << what << ", row " << m;
      other_codes += error > tolerance ? 1 : 0;
    }
    EXPECT_LE(other_codes, 1 + tokens / 30) << what;
  }
};

TEST_P(IntegerParts, AgreesWithTheReference) {
  // Decode, several panels at once, tiles of every size, several row blocks; k over one block and over two.
  for (const Sizes& s : {Sizes{.tokens = 1, .experts = 3, .top_k = 2, .hidden = 71, .inner = 43},
                         Sizes{.tokens = 9, .experts = 3, .top_k = 2, .hidden = 129, .inner = 301},
                         Sizes{.tokens = 70, .experts = 2, .top_k = 1, .hidden = 1201, .inner = 41}}) {
    expect_reference(integer_case(s), 1e-6, std::to_string(s.tokens) + " tokens");
    expect_reference(integer_case(s, DType::f32, QuantKey::int8_tensor), 1e-6, "one scale of each matrix");
  }
  const Sizes odd{.tokens = 11, .experts = 4, .top_k = 3, .hidden = 33, .inner = 70};
  for (const DType dtype : {DType::bf16, DType::f16})
    expect_reference(integer_case(odd, dtype), tolerance_of(dtype), std::string(name_of(dtype)));
}

TEST_P(IntegerParts, LayoutsBiasesAndGatesWithScalesOfTheirOwn) {
  for (const W13Layout layout : {W13Layout::gate_up, W13Layout::up_gate, W13Layout::interleaved}) {
    GroupedCase c;
    c.problem = integer_problem({.tokens = 7, .experts = 3, .top_k = 2, .hidden = 50, .inner = 37}, DType::f32,
                                QuantKey::int8_tensor);
    c.moe().w13_layout = layout;
    c.moe().has_w13_bias = c.moe().has_w2_bias = true;
    fill_case(c, 7, 23);
    quantise_weights(c, true);
    expect_reference(c, 1e-6, std::string(name_of(layout)));
  }
  GroupedCase c;
  c.problem = integer_problem({.tokens = 7, .hidden = 50, .inner = 37}, DType::f32, QuantKey::int8_channel);
  c.moe().activation = Activation::relu2_no_mul;
  fill_case(c, 7, 23);
  quantise_weights(c);
  expect_reference(c, 1e-6, "no gate");
}

TEST_P(IntegerParts, SameBitsAsTheEmulatedUnit) {
  const GroupedCase c = integer_case({.tokens = 40, .experts = 3, .top_k = 2, .hidden = 1131, .inner = 77});
  const Tensor got = run(c);
  const Tensor want = GroupedRunner(integer_part(kEmulatedName), c, 1).run(c);
  EXPECT_TRUE(same_bytes(got, want)) << rel_error(got, values(want));
}

TEST_P(IntegerParts, LargestCodesOfBothSigns) {
  // 4096 products of 127 and -128, which 16 bits hold for no two; x + 128 is 255 or 1.
  GroupedCase c = integer_case({.tokens = 8, .experts = 2, .top_k = 1, .hidden = 4096, .inner = 9});
  std::memset(c.quantised->w13.view().data, 0x80, static_cast<std::size_t>(c.quantised->w13.view().bytes()));
  for (std::int64_t i = 0; i < c.x.view().numel(); ++i) c.x.as<float>()[i] = i / 4096 % 2 == 0 ? 1.0f : -1.0f;
  expect_reference(c, 1e-6, "largest codes");
}

TEST_P(IntegerParts, BitwiseRepeatAndBatchInvarianceBesideARowOfNaN) {
  GroupedCase c = integer_case({.tokens = 30, .experts = 3, .top_k = 2, .hidden = 65, .inner = 49});
  c.x.as<float>()[13 * 65 + 64] = INFINITY;
  GroupedRunner runner(integer_part(GetParam()), c, 2);
  const Tensor all = runner.run(c);
  const ConstTensorView x = c.x, ids = c.ids, weights = c.weights;
  for (const std::int64_t first : {0, 12, 14, 29}) {
    const Tensor one = runner.run(c, x.narrow(0, first, 1), ids.narrow(0, first, 1), weights.narrow(0, first, 1));
    EXPECT_TRUE(same_bytes(one.view().at(0), all.view().at(first))) << first;
    for (const double value : values(one)) EXPECT_TRUE(std::isfinite(value)) << first;
  }
  for (const double value : values(all.view().at(13))) EXPECT_TRUE(std::isnan(value));
}

INSTANTIATE_TEST_SUITE_P(Parts, IntegerParts, testing::Values("avx2", "avx512_vnni", kEmulatedName),
                         [](const auto& row) { return row.param; });

TEST(IntegerPartsList, RefusesOtherKeysAndSumsThatMayNotFit) {
  const Entry<Experts> part = part_named("experts/cpu_int8_int8_avx2");
  Problem p = integer_problem({}, DType::bf16, QuantKey::int8_group128);
  p.device.cpu = {true, true, true, true, true, true};
  EXPECT_NE(part.supports(p).reason().find("it takes int8_tensor, int8_channel x int8_token"), std::string::npos);
  p.quant = {QuantKey::int8_channel, QuantKey::none};
  EXPECT_NE(part.supports(p).reason().find("activations none"), std::string::npos);
  p.quant.activations = QuantKey::int8_token;
  EXPECT_TRUE(part.supports(p));
  p.moe.intermediate_size = (1 << 17) + 1;
  EXPECT_NE(part.supports(p).reason().find("intermediate_size 131073"), std::string::npos);
}

}  // namespace
}  // namespace conclave::test

#endif
