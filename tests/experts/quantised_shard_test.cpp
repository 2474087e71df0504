// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Slices of quantised weights, wherever they are cut, decode to the bits of the same slice of the whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conclave/quantise.hpp"
#include "conclave/shard.hpp"
#include "experts/plain_weights.hpp"
#include "support/expert_case.hpp"

namespace conclave {
namespace {

using K = QuantKey;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct ShardCase {
  K key;
  std::int64_t intermediate_size;
  std::int64_t num_ranks;
  K after;  ///< Format of the slices.
  W13Layout layout = W13Layout::gate_up;
  bool split = false;
};
void PrintTo(const ShardCase& c, std::ostream* out) {
  *out << name_of(c.key) << " I " << c.intermediate_size << " over " << c.num_ranks << " " << name_of(c.layout);
}

class QuantisedShard : public ::testing::TestWithParam<ShardCase> {};

/// As a part that decodes keeps them.
experts::PlainWeights decoded(const Problem& p, const ExpertWeights& w) {
  return experts::PlainWeights("test", p, w);
}

TEST_P(QuantisedShard, DecodesToTheSliceOfTheWhole) {
  const ShardCase& c = GetParam();
  Problem whole;
  whole.moe = test::small_config();
  whole.moe.num_experts = 3;
  whole.moe.hidden_size = 128;
  whole.moe.intermediate_size = c.intermediate_size;
  whole.moe.w13_layout = c.layout;
  whole.moe.has_w13_bias = whole.moe.has_w2_bias = true;
  const test::ExpertCase plain = test::make_expert_case(whole.moe, 1, 11);
  const QuantisedExperts owned = quantise_experts(whole.moe, c.key, plain.weights, c.split);
  const ExpertWeights weights = owned.weights(plain.weights);
  whole.quant.weights = c.key;
  const experts::PlainWeights expected = decoded(whole, weights);
  const bool interleaved = c.layout == W13Layout::interleaved;
  const std::int64_t size = c.intermediate_size;
  for (std::int64_t rank = 0; rank < c.num_ranks; ++rank) {
    whole.parallel = make_parallel(c.num_ranks, rank, 1, 0, 1, 0, 1, false, All2All::none);
    const Problem p = shard_problem(whole);
    EXPECT_EQ(p.quant.weights, c.after);
    EXPECT_EQ(p.notes.empty(), c.after == c.key);
    const ShardRange range = shard_range(size, c.num_ranks, rank);
    ASSERT_EQ(p.moe.intermediate_size, range.length);
    const ShardedWeights shard = shard_weights(whole, weights);
    const experts::PlainWeights got = decoded(p, shard.experts);
    for (std::int64_t e = 0; e < 3; ++e) {
      for (std::int64_t i = 0; i < range.length; ++i) {
        for (std::int64_t half = 0; half < 2; ++half) {
          const std::int64_t from = interleaved ? 2 * (range.begin + i) + half : half * size + range.begin + i;
          const std::int64_t to = interleaved ? 2 * i + half : half * range.length + i;
          for (std::int64_t h = 0; h < 128; ++h)
            ASSERT_EQ(test::at(got.w13(), {e, to, h}), test::at(expected.w13(), {e, from, h})) << e << " " << from;
          ASSERT_EQ(test::at(got.w13_bias(), {e, to}), test::at(expected.w13_bias(), {e, from}));
        }
        for (std::int64_t h = 0; h < 128; ++h)
          ASSERT_EQ(test::at(got.w2(), {e, h, i}), test::at(expected.w2(), {e, h, range.begin + i})) << e << " " << h;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cuts, QuantisedShard,
    ::testing::Values(ShardCase{K::fp8_block128, 384, 3, K::fp8_block128}, ShardCase{K::fp8_block128, 300, 3, K::none},
                      ShardCase{K::fp8_block128, 256, 4, K::none, W13Layout::up_gate},
                      ShardCase{K::fp8_block128, 300, 2, K::none, W13Layout::interleaved},
                      ShardCase{K::fp8_block128, 40, 3, K::fp8_block128, W13Layout::interleaved},
                      ShardCase{K::fp8_tensor, 37, 3, K::fp8_tensor, W13Layout::interleaved, true},
                      ShardCase{K::int8_tensor, 37, 2, K::int8_tensor, W13Layout::gate_up, true},
                      ShardCase{K::int8_channel, 37, 3, K::int8_channel, W13Layout::interleaved},
                      ShardCase{K::int8_group128, 256, 4, K::none},
                      ShardCase{K::int4_group128, 256, 4, K::int4_group64},
                      ShardCase{K::int4_group128_zp, 384, 4, K::int4_group32_zp, W13Layout::interleaved},
                      ShardCase{K::int4_group64, 192, 4, K::none}, ShardCase{K::int4_channel, 37, 3, K::none},
                      ShardCase{K::int4_channel, 40, 2, K::int4_channel}, ShardCase{K::mxfp4, 96, 2, K::none},
                      ShardCase{K::mxfp8, 96, 3, K::mxfp8},
                      ShardCase{K::nvfp4, 48, 2, K::none, W13Layout::interleaved, true},
                      ShardCase{K::nvfp4, 48, 3, K::nvfp4, W13Layout::gate_up, true}));

TEST(QuantisedShard, ANoteSaysWhatTheCutDid) {
  Problem whole;
  whole.moe = test::small_config();
  whole.moe.intermediate_size = 96;
  whole.quant.weights = K::mxfp4;
  whole.parallel = make_parallel(2, 1, 1, 0, 1, 0, 1, false, All2All::none);
  const Problem p = shard_problem(whole);
  EXPECT_EQ(p.moe.weight_dtype, DType::bf16);
  EXPECT_THAT(p.notes,
              ElementsAre("weights: mxfp4 decoded to bf16: 2 ranks cut intermediate_size 96 inside its groups"));
  whole.quant.weights = K::int4_group32;
  whole.parallel.tp_size = 3;
  EXPECT_THAT(shard_problem(whole).notes, IsEmpty());
}

}  // namespace
}  // namespace conclave
