// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
#include "conclave/shard.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/message_of.hpp"
#include "support/tensors.hpp"

namespace conclave {
namespace {

using test::at;
using ::testing::HasSubstr;

/// Element [e, r, c] of every tensor says where it comes from.
Tensor numbered(std::initializer_list<std::int64_t> shape) {
  Tensor t(DType::f32, shape);
  for (std::int64_t i = 0; i < t.view().numel(); ++i) t.as<float>()[i] = static_cast<float>(i);
  return t;
}

MoeConfig shard_moe() {
  MoeConfig moe;
  moe.num_experts = 5;
  moe.top_k = 1;
  moe.hidden_size = 3;
  moe.intermediate_size = 7;
  moe.has_w13_bias = moe.has_w2_bias = true;
  return moe;
}

struct ShardTensors {
  Tensor w13 = numbered({5, 14, 3}), w2 = numbered({5, 3, 7}), b13 = numbered({5, 14}), b2 = numbered({5, 3});
  ExpertWeights weights() const {
    ExpertWeights w;
    w.w13 = w13;
    w.w2 = w2;
    w.w13_bias = b13.view();
    w.w2_bias = b2.view();
    return w;
  }
};

TEST(Shard, RangesCoverEverythingOnce) {
  std::int64_t next = 0;
  for (std::int64_t r = 0; r < 4; ++r) {
    const ShardRange range = shard_range(7, 4, r);
    EXPECT_EQ(range.begin, next);
    next += range.length;
    EXPECT_EQ(range.length, r < 3 ? 2 : 1);
  }
  EXPECT_EQ(next, 7);
  EXPECT_EQ(shard_range(2, 4, 3).length, 0);
  EXPECT_THAT(test::message_of([] { shard_range(7, 4, 4); }), HasSubstr("rank 4 of 4"));
}

TEST(Shard, ExpertsArePlacedWithoutACopy) {
  const ShardTensors t;
  for (const Placement placement : {Placement::linear, Placement::round_robin})
    for (std::int64_t rank = 0; rank < 3; ++rank) {
      ParallelConfig p = make_parallel(1, 0, 1, 0, 3, rank, 1, true, All2All::all_to_all);
      p.placement = placement;
      const ShardedWeights s = shard_weights(shard_moe(), t.weights(), p);
      const ExpertMap map = make_expert_map(5, 3, rank, placement);
      EXPECT_EQ(s.owned.size(), 1U);  // The names below, and no weights.
      EXPECT_EQ(test::values(*s.experts.expert_ids), std::vector<double>(map.global_id.begin(), map.global_id.end()));
      ASSERT_EQ(s.experts.num_local_experts(), map.num_local());
      for (std::int64_t slot = 0; slot < map.num_local(); ++slot) {
        const std::int64_t id = map.global_id[static_cast<std::size_t>(slot)];
        EXPECT_EQ(at(s.experts.w13, {slot, 9, 2}), at(t.w13, {id, 9, 2}));
        EXPECT_EQ(at(s.experts.w2, {slot, 1, 5}), at(t.w2, {id, 1, 5}));
        EXPECT_EQ(at(*s.experts.w13_bias, {slot, 13}), at(t.b13, {id, 13}));
        EXPECT_EQ(at(*s.experts.w2_bias, {slot, 0}), at(t.b2, {id, 0}));
      }
    }
}

TEST(Shard, MoreRanksThanExpertsLeaveSomeWithoutAny) {
  const ShardTensors t;
  const ParallelConfig p = make_parallel(1, 0, 1, 0, 8, 7, 1, true, All2All::all_to_all);
  EXPECT_EQ(shard_weights(shard_moe(), t.weights(), p).experts.num_local_experts(), 0);
}

/// Row r of the shard is row begin + r of gate, or of up; column c of w2 is column begin + c.
TEST(Shard, WidthIsCutInBothHalves) {
  const ShardTensors t;
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    const ParallelConfig p = make_parallel(3, rank, 1, 0, 1, 0, 1, false, All2All::none);
    const ShardedWeights s = shard_weights(shard_moe(), t.weights(), p);
    const ShardRange range = shard_range(7, 3, rank);
    ASSERT_EQ(s.experts.w13.size(1), 2 * range.length);
    ASSERT_EQ(s.experts.w2.size(2), range.length);
    EXPECT_EQ(shard_config(shard_moe(), p).intermediate_size, range.length);
    for (std::int64_t half = 0; half < 2; ++half)
      for (std::int64_t r = 0; r < range.length; ++r) {
        const std::int64_t to = half * range.length + r, from = half * 7 + range.begin + r;
        EXPECT_EQ(at(s.experts.w13, {3, to, 1}), at(t.w13, {3, from, 1}));
        EXPECT_EQ(at(*s.experts.w13_bias, {3, to}), at(t.b13, {3, from}));
      }
    for (std::int64_t c = 0; c < range.length; ++c)
      EXPECT_EQ(at(s.experts.w2, {4, 2, c}), at(t.w2, {4, 2, range.begin + c}));
    EXPECT_EQ(at(*s.experts.w2_bias, {2, 1}), at(t.b2, {2, 1}));
  }
}

TEST(Shard, InterleavedRowsAreOneRun) {
  const ShardTensors t;
  MoeConfig moe = shard_moe();
  moe.w13_layout = W13Layout::interleaved;
  const ParallelConfig p = make_parallel(3, 1, 1, 0, 1, 0, 1, false, All2All::none);
  const ShardedWeights s = shard_weights(moe, t.weights(), p);
  ASSERT_EQ(s.experts.w13.size(1), 4);
  for (std::int64_t r = 0; r < 4; ++r) EXPECT_EQ(at(s.experts.w13, {1, r, 0}), at(t.w13, {1, 6 + r, 0}));
}

/// Scales of groups of 4 columns: a cut at 4 of 8 falls between groups, one at 3 does not.
TEST(Shard, ACutThroughAGroupOfScalesIsRefused) {
  MoeConfig moe = shard_moe();
  moe.has_w13_bias = moe.has_w2_bias = false;
  moe.activation = Activation::silu_no_mul;
  moe.intermediate_size = 8;
  const Tensor w13 = numbered({5, 8, 3}), w2 = numbered({5, 3, 8}), scale = numbered({5, 3, 2});
  ExpertWeights w;
  w.w13 = w13;
  w.w2 = w2;
  w.w2_scale = scale.view();
  const ShardedWeights s = shard_weights(moe, w, make_parallel(2, 1, 1, 0, 1, 0, 1, false, All2All::none));
  ASSERT_EQ(s.experts.w2_scale->size(2), 1);
  EXPECT_EQ(at(*s.experts.w2_scale, {2, 1, 0}), at(scale, {2, 1, 1}));
  const std::string message =
      test::message_of([&] { shard_weights(moe, w, make_parallel(3, 1, 1, 0, 1, 0, 1, false, All2All::none)); });
  EXPECT_THAT(message, HasSubstr("w2_scale: the slice [3, 6) of 8 cuts a group of 4"));
}

/// Two blocks of 128 cover 192 columns: half of 192 is no block, although two scales can be halved.
TEST(Shard, AShortLastGroupDoesNotHideACut) {
  MoeConfig moe = shard_moe();
  moe.has_w13_bias = moe.has_w2_bias = false;
  moe.activation = Activation::silu_no_mul;
  const auto message = [&](std::int64_t size) {
    moe.intermediate_size = size;
    const Tensor w13 = numbered({5, size, 3}), w2 = numbered({5, 3, size}), scale = numbered({5, 1, 2});
    ExpertWeights w;
    w.w13 = w13;
    w.w2 = w2;
    w.w2_scale = scale.view();
    return test::message_of([&] { shard_weights(moe, w, make_parallel(2, 1, 1, 0, 1, 0, 1, false, All2All::none)); });
  };
  EXPECT_THAT(message(192), HasSubstr("w2_scale: the slice [96, 192) of 192 cuts a group of 128"));
  EXPECT_EQ(message(256), "no error");
}

TEST(Shard, TheMapAsATensor) {
  ParallelConfig p = make_parallel(1, 0, 1, 0, 2, 1, 1, true, All2All::all_to_all);
  p.placement = Placement::round_robin;
  const Tensor map = expert_map_tensor(shard_moe(), p);
  EXPECT_EQ(test::values(map), (std::vector<double>{-1, 0, -1, 1, -1}));
}

}  // namespace
}  // namespace conclave
