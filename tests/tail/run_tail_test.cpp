// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// run_tail() against norm(all_reduce(routed * s + shared) + residual) in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "quant/elements.hpp"
#include "support/message_of.hpp"
#include "tail/tail_case.hpp"

namespace conclave {
namespace {

using test::make_tail_case;
using test::oracle_tail;
using test::run_tail_once;
using test::TailCase;
using test::TailRun;
using test::TailShape;
using ::testing::HasSubstr;

class RunTail : public ::testing::Test {
 protected:
  static TailInput input_of(const TailCase& c) {
    TailInput in;
    in.moe = c.open();
    in.residual = c.residual.view();
    in.norm_weight = c.norm_weight.view();
    return in;
  }
  TailRun run(const TailInput& in, const TailShape& s, DType out = DType::f32) {
    return run_tail_once(config_, in, s, *executor_, out);
  }
  TailConfig config_;
  std::unique_ptr<Executor> executor_ = make_executor(2);
};

TEST_F(RunTail, IsTheNormOfTheSum) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (DType weights : {DType::f32, DType::bf16, DType::f16})
      for (double bias : {0.0, 1.0}) {
        const TailShape s{.rows = dtype, .weights = weights, .dtype = dtype};
        const TailCase c = make_tail_case(s, 21);
        TailInput in = input_of(c);
        in.moe.routed_scaling_factor = 1.75;
        config_.weight_bias = bias;
        const TailRun r = run(in, s);
        const test::TailOracle o = oracle_tail(config_, {in.moe}, c);
        EXPECT_LT(test::rel_error(r.residual_out, o.residual_out), 1e-6) << name_of(dtype) << " " << name_of(weights);
        EXPECT_LT(test::rel_error(r.normed, o.normed), 1e-6) << name_of(dtype) << " bias " << bias;
      }
}

/// The norm sees the sum before it is rounded to residual_out, and rounds its own result once.
TEST_F(RunTail, RoundsEachOutputOnce) {
  const TailShape s{.dtype = DType::bf16};
  const TailCase c = make_tail_case(s, 23);
  const TailRun wide = run(input_of(c), s);
  const TailRun narrow = run(input_of(c), s, DType::bf16);
  for (std::int64_t i = 0; i < wide.normed.view().numel(); ++i) {
    ASSERT_EQ(narrow.normed.as<std::uint16_t>()[i], test::encode(wide.normed.as<float>()[i], test::kBf16));
    ASSERT_EQ(narrow.residual_out.as<std::uint16_t>()[i], test::encode(wide.residual_out.as<float>()[i], test::kBf16));
  }
}

TEST_F(RunTail, NeedsNeitherResidualNorShared) {
  const TailShape s;
  const TailCase c = make_tail_case(s, 25);
  TailInput in = input_of(c);
  in.residual.reset();
  in.moe.shared_output.reset();
  const TailRun r = run(in, s);
  const test::TailOracle o = oracle_tail(config_, {in.moe}, c, false);
  EXPECT_LT(test::rel_error(r.residual_out, o.residual_out), 1e-6);
  EXPECT_LT(test::rel_error(r.normed, o.normed), 1e-6);
  // And a residual that should be there is missed.
  EXPECT_GT(test::rel_error(r.normed, oracle_tail(config_, {in.moe}, c).normed), 0.1);
}

TEST_F(RunTail, EqualsFinishThenNorm) {
  const TailShape s;
  const TailCase c = make_tail_case(s, 27);
  TailInput open = input_of(c);
  open.moe.routed_scaling_factor = 0.5;
  Tensor plain = test::poisoned_tensor(DType::f32, {s.num_tokens, s.hidden_size});
  finish(open.moe, plain, Stream::cpu(*executor_));
  TailInput finished = input_of(c);
  finished.moe = MoeOutput{};
  finished.moe.routed = plain.view();
  const TailRun a = run(open, s);
  const TailRun b = run(finished, s);
  EXPECT_TRUE(test::same_bytes(a.normed, b.normed));
  EXPECT_TRUE(test::same_bytes(a.residual_out, b.residual_out));
}

/// Ranks whose partial sums are added in rank order, as a communicator does it; every rank ends with the same bits.
class Ranks {
 public:
  explicit Ranks(int count) {
    for (int r = 0; r < count; ++r) {
      cases.push_back(make_tail_case(TailShape{}, 40 + static_cast<std::uint64_t>(r)));
      cases.back().residual = cases[0].residual;  // Residual and norm are the same on every rank.
      cases.back().norm_weight = cases[0].norm_weight;
      opens.push_back(cases.back().open());
    }
  }
  /// What rank `mine` gets: its own partial sums in place, the others' from finish().
  TailRun run(std::size_t mine, Executor& executor, bool reversed = false) const {
    const TailShape s;
    const auto body = [&](const TensorView& partial) {
      std::vector<float> sum(static_cast<std::size_t>(partial.numel()), 0.0F);
      for (std::size_t i = 0; i < opens.size(); ++i) {
        const std::size_t r = reversed ? opens.size() - 1 - i : i;
        Tensor other = test::poisoned_tensor(DType::f32, {s.num_tokens, s.hidden_size});
        finish(opens[r], other, Stream::cpu(executor));
        const float* part = r == mine ? partial.as<float>() : other.as<float>();
        for (std::size_t e = 0; e < sum.size(); ++e) sum[e] = i == 0 ? part[e] : sum[e] + part[e];
      }
      std::copy(sum.begin(), sum.end(), partial.as<float>());
    };
    const AllReduceInPlace all_reduce(body);
    TailInput in;
    in.moe = opens[mine];
    in.residual = cases[mine].residual.view();
    in.norm_weight = cases[mine].norm_weight.view();
    in.all_reduce = &all_reduce;
    return run_tail_once({}, in, s, executor);
  }
  std::vector<TailCase> cases;
  std::vector<MoeOutput> opens;
};

TEST_F(RunTail, SumsOverRanksInTheirOrder) {
  for (int count : {2, 3, 4}) {
    const Ranks ranks(count);
    const TailRun first = ranks.run(0, *executor_);
    const test::TailOracle o = oracle_tail(config_, ranks.opens, ranks.cases[0]);
    EXPECT_LT(test::rel_error(first.residual_out, o.residual_out), 1e-6) << count;
    EXPECT_LT(test::rel_error(first.normed, o.normed), 1e-6) << count;
    for (std::size_t r = 1; r < ranks.opens.size(); ++r) {
      const TailRun other = ranks.run(r, *executor_);
      EXPECT_TRUE(test::same_bytes(other.normed, first.normed)) << r;
      EXPECT_TRUE(test::same_bytes(other.residual_out, first.residual_out)) << r;
    }
  }
  // With three ranks another order is another rounding: the order is really what makes the bits.
  EXPECT_FALSE(
      test::same_bytes(Ranks(3).run(0, *executor_, true).residual_out, Ranks(3).run(0, *executor_).residual_out));
}

/// The same over a communicator: the bits of the sum that was written out above.
TEST_F(RunTail, SumsOverACommunicator) {
  const TailShape s;
  for (int count : {1, 2, 3, 4}) {
    const Ranks ranks(count);
    const TailRun expected = ranks.run(0, *executor_);
    std::mutex mutex;
    run_ranks(count, [&](Communicator& comm) {
      const auto mine = static_cast<std::size_t>(comm.rank());
      const auto executor = make_inline_executor();
      const test::PoisonedArena memory(
          [&](Arena& a) { CommunicatorAllReduce::plan_scratch(comm, a, s.num_tokens, s.hidden_size); });
      Arena arena = memory.arena();
      const CommunicatorAllReduce sum(comm, arena, s.num_tokens, s.hidden_size);
      const AllReduceInPlace all_reduce(sum);
      TailInput in;
      in.moe = ranks.opens[mine];
      in.residual = ranks.cases[mine].residual.view();
      in.norm_weight = ranks.cases[mine].norm_weight.view();
      in.all_reduce = &all_reduce;
      const TailRun r = run_tail_once({}, in, s, *executor);
      const std::lock_guard lock(mutex);
      EXPECT_TRUE(test::same_bytes(r.normed, expected.normed)) << comm.rank() << " of " << count;
      EXPECT_TRUE(test::same_bytes(r.residual_out, expected.residual_out));
      EXPECT_TRUE(memory.guard_intact());
    });
  }
}

TEST_F(RunTail, QuantisesFromTheUnroundedNorm) {
  const TailShape s;
  const TailCase c = make_tail_case(s, 29);
  TailInput in = input_of(c);
  config_.quant = QuantKey::fp8_token;
  const TailRun token = run(in, s);
  const Tensor scale = test::tensor_of(DType::f32, {1}, {0.0123});
  in.static_scale = scale.view();
  config_.quant = QuantKey::fp8_tensor;
  const TailRun tensor = run(in, s);
  for (std::int64_t t = 0; t < s.num_tokens; ++t) {
    float largest = 0;
    for (std::int64_t h = 0; h < s.hidden_size; ++h)
      largest = std::max(largest, std::fabs(static_cast<float>(test::at(token.normed, {t, h}))));
    EXPECT_EQ(token.token_scales.as<float>()[t], largest / 448.0F);
    for (std::int64_t h = 0; h < s.hidden_size; ++h) {
      const auto x = static_cast<float>(test::at(token.normed, {t, h}));
      const std::int64_t i = t * s.hidden_size + h;
      ASSERT_EQ(token.quantised.as<std::uint8_t>()[i], quant::f32_to_e4m3(x / (largest / 448.0F)));
      ASSERT_EQ(tensor.quantised.as<std::uint8_t>()[i], quant::f32_to_e4m3(x / 0.0123F));
      // Half a step of three mantissa bits, wherever the static scale does not saturate.
      const float back = quant::e4m3_to_f32(token.quantised.as<std::uint8_t>()[i]) * (largest / 448.0F);
      ASSERT_NEAR(back, x, std::fabs(x) / 16 + largest / 448.0F / 1024);
    }
  }
}

TEST_F(RunTail, ARowOfZerosStaysZeroAndFinite) {
  TailShape s{.num_tokens = 2, .hidden_size = 19, .top_k = 1};
  TailCase c = make_tail_case(s, 31);
  c.map.as<std::int32_t>()[0] = -1;
  for (std::int64_t h = 0; h < s.hidden_size; ++h) test::set(c.residual, {0, h}, 0);
  TailInput in = input_of(c);
  in.moe.shared_output.reset();
  config_.quant = QuantKey::fp8_token;
  const TailRun r = run(in, s);
  EXPECT_GT(r.token_scales.as<float>()[0], 0.0F);
  for (std::int64_t h = 0; h < s.hidden_size; ++h) {
    ASSERT_EQ(test::at(r.normed, {0, h}), 0.0);
    ASSERT_EQ(r.quantised.as<std::uint8_t>()[h] & 0x7F, 0);
  }
}

TEST_F(RunTail, RowsDoNotDependOnTheBatchOrTheThreads) {
  const TailShape s{.num_tokens = 65};
  const TailCase c = make_tail_case(s, 33);
  config_.quant = QuantKey::fp8_token;
  const TailRun all = run(input_of(c), s);
  EXPECT_TRUE(test::same_bytes(run(input_of(c), s).normed, all.normed));
  const auto one = make_inline_executor();
  for (std::int64_t t : {0, 1, 40, 64}) {
    TailInput in = input_of(c);
    in.moe.unfinalized->expert_weights = c.weights.view().narrow(0, t, 1);
    in.moe.unfinalized->expanded_idx_to_permuted_idx = c.map.view().narrow(0, t, 1);
    in.moe.shared_output = c.shared.view().narrow(0, t, 1);
    in.residual = c.residual.view().narrow(0, t, 1);
    const TailRun alone = run_tail_once(config_, in, {.num_tokens = 1}, *one);
    EXPECT_TRUE(test::same_bytes(alone.normed, all.normed.view().narrow(0, t, 1)));
    EXPECT_TRUE(test::same_bytes(alone.residual_out, all.residual_out.view().narrow(0, t, 1)));
    EXPECT_TRUE(test::same_bytes(alone.quantised, all.quantised.view().narrow(0, t, 1)));
  }
}

TEST_F(RunTail, TakesStridedRowsAndAResidualInPlace) {
  const TailShape s;
  const TailCase c = make_tail_case(s, 35);
  const TailRun expected = run(input_of(c), s);
  Tensor residual(DType::f32, {s.num_tokens, s.hidden_size + 7});
  test::poison(residual);
  const TensorView rows = residual.view().narrow(1, 3, s.hidden_size);
  for (std::int64_t t = 0; t < s.num_tokens; ++t)
    for (std::int64_t h = 0; h < s.hidden_size; ++h) test::set(rows, {t, h}, test::at(c.residual, {t, h}));
  Tensor normed = test::poisoned_tensor(DType::f32, {s.num_tokens, s.hidden_size + 2});
  TailInput in = input_of(c);
  in.residual = rows;
  TailOutput out;
  out.residual_out = rows;
  out.normed = normed.view().narrow(1, 0, s.hidden_size);
  const test::PoisonedArena memory([&](Arena& a) { plan_tail_scratch(a, s.num_tokens, s.hidden_size); });
  Arena arena = memory.arena();
  run_tail(config_, in, out, arena, Stream::cpu(*executor_));
  EXPECT_EQ(test::values(rows), test::values(expected.residual_out));
  EXPECT_EQ(test::values(*out.normed), test::values(expected.normed));
  EXPECT_TRUE(std::isnan(test::at(residual, {0, 2})));
  EXPECT_TRUE(std::isnan(test::at(normed, {0, s.hidden_size})));
}

TEST_F(RunTail, TakesNoTokens) {
  TailInput in;
  in.moe.routed = TensorView(nullptr, DType::f32, {0, 521});
  const TailCase c = make_tail_case({}, 37);
  in.norm_weight = c.norm_weight.view();
  const auto never = [](const TensorView&) { FAIL() << "all_reduce for no tokens"; };
  const AllReduceInPlace all_reduce(never);
  in.all_reduce = &all_reduce;
  run(in, {.num_tokens = 0});
}

TEST_F(RunTail, RefusesWhatBreaksTheContract) {
  const TailShape s;
  const TailCase c = make_tail_case(s, 39);
  TailInput in = input_of(c);
  config_.quant = QuantKey::nvfp4;
  EXPECT_THAT(test::message_of([&] { run(in, s); }), HasSubstr("quantised output nvfp4"));
  config_.quant = QuantKey::fp8_tensor;
  EXPECT_THAT(test::message_of([&] { run(in, s); }), HasSubstr("static_scale"));
  const Tensor zero = test::tensor_of(DType::f32, {1}, {0});
  in.static_scale = zero.view();
  EXPECT_THAT(test::message_of([&] { run(in, s); }), HasSubstr("static_scale: given 0, expected a positive number"));
  config_.quant = QuantKey::none;
  in.residual = c.residual.view().narrow(0, 0, 3);
  EXPECT_THAT(test::message_of([&] { run(in, s); }), HasSubstr("residual: given f32[3, 521], expected [7, 521]"));
  Arena none = Arena::measuring();
  in.residual.reset();
  EXPECT_THAT(test::message_of([&] { run_tail(config_, in, {}, none, Stream::cpu(*executor_)); }),
              HasSubstr("nothing to write"));
}

}  // namespace
}  // namespace conclave
