// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conclave/error.hpp"
#include "support/expert_case.hpp"
#include "support/oracle.hpp"

namespace conclave {

std::vector<Entry<Experts>> builtin_experts();

namespace {

using test::ExpertCase;
using test::make_expert_case;
using test::rel_error;
using test::small_config;
using test::values;
using ::testing::HasSubstr;

/// Returns prescribed ids and weights, and dirties scratch of its own on the way: what experts keep must survive that.
class FixedRouter final : public Router {
 public:
  FixedRouter(Tensor ids, Tensor weights) : ids_(std::move(ids)), weights_(std::move(weights)) {}
  const std::string& name() const noexcept override { return name_; }
  void plan_scratch(Arena& arena, std::int64_t num_tokens) const override { arena.take(DType::f32, {num_tokens, 13}); }
  void route(const RouterInput& input, const Routing& out, Arena& arena, Stream /*stream*/) const override {
    const std::int64_t num_tokens = input.logits.size(0);
    test::poison(arena.take(DType::f32, {num_tokens, 13}));
    for (std::int64_t m = 0; m < num_tokens; ++m)
      for (std::int64_t j = 0; j < out.topk_ids.size(1); ++j) {
        test::set(out.topk_ids, {m, j}, test::at(ids_, {m, j}));
        test::set(out.topk_weights, {m, j}, test::at(weights_, {m, j}));
      }
  }

 private:
  std::string name_ = "router/fixed";
  Tensor ids_, weights_;
};

const std::string kMonolithic = "experts/reference_monolithic";

Tensor run_monolithic(const ExpertCase& c, std::optional<Routing> captured = {}, int num_threads = 2) {
  const auto executor = make_executor(num_threads);
  const Stream stream = Stream::cpu(*executor);
  const auto part = test::make_experts(builtin_experts(), kMonolithic, c.problem,
                                       std::make_shared<FixedRouter>(c.topk_ids, c.topk_weights));
  const auto& experts = dynamic_cast<const MonolithicExperts&>(*part);
  const auto packed = experts.pack(c.weights, stream);
  const std::int64_t num_tokens = c.hidden_states.view().size(0);
  const test::PoisonedArena memory([&](Arena& arena) { experts.take_buffers(arena, num_tokens); });
  Arena arena = memory.arena();
  const ExpertsBuffers buffers = experts.take_buffers(arena, num_tokens);
  const Tensor logits(DType::f32, {num_tokens, c.moe().num_experts});
  MonolithicInput input;
  input.hidden_states = c.hidden_states;
  input.router.logits = logits;
  input.expert_map = c.expert_map;
  input.captured = captured;
  experts.apply(input, *packed, buffers, stream);
  EXPECT_TRUE(memory.guard_intact());
  EXPECT_EQ(buffers.output.dtype, c.moe().dtype);
  return test::tensor_of(buffers.output.dtype, {num_tokens, c.moe().hidden_size}, values(buffers.output));
}

std::vector<double> expected_monolithic(const ExpertCase& c) {
  return test::oracle_moe(c.moe(), c.hidden_states, c.weights, c.topk_ids, c.topk_weights, c.expert_map);
}

TEST(ReferenceMonolithic, WeightsAndSumsOverPicks) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    MoeConfig moe = small_config(dtype);
    moe.has_w13_bias = moe.has_w2_bias = true;
    const ExpertCase c = make_expert_case(moe, 50, 3);
    // One rounding of the output: half a unit in the last place of its type.
    const double tolerance = dtype == DType::f32 ? 1e-6 : dtype == DType::bf16 ? 3e-3 : 4e-4;
    EXPECT_LT(rel_error(run_monolithic(c), expected_monolithic(c)), tolerance) << name_of(dtype);
  }
}

TEST(ReferenceMonolithic, MorePicksThanRowsInAWave) {
  MoeConfig moe = small_config();
  moe.num_experts = 90;
  moe.top_k = 71;
  const ExpertCase c = make_expert_case(moe, 3, 3);
  EXPECT_LT(rel_error(run_monolithic(c), expected_monolithic(c)), 1e-6);
}

TEST(ReferenceMonolithic, CapturesTheRouting) {
  const ExpertCase c = make_expert_case(small_config(), 4, 3);
  const Tensor ids = test::poisoned_tensor(DType::i64, {4, 3});
  const Tensor weights = test::poisoned_tensor(DType::f32, {4, 3});
  run_monolithic(c, Routing{ids, weights});
  EXPECT_EQ(values(ids), values(c.topk_ids));
  EXPECT_EQ(values(weights), values(c.topk_weights));
}

/// k = 1, x := x * w: E(0.5 x), not 0.5 E(0.5 x).
TEST(ReferenceMonolithic, WeightsTheInputInsteadOfTheOutput) {
  MoeConfig moe = small_config();
  moe.top_k = 1;
  moe.apply_router_weight_on_input = true;
  const ExpertCase c = make_expert_case(moe, 6, 3);
  EXPECT_LT(rel_error(run_monolithic(c), expected_monolithic(c)), 1e-6);
  ExpertCase on_output = c;
  on_output.problem.moe.apply_router_weight_on_input = false;
  EXPECT_GT(rel_error(run_monolithic(on_output), expected_monolithic(c)), 0.1);
}

TEST(ReferenceMonolithic, RemoteEmptyAndZeroWeightTermsAreSkipped) {
  MoeConfig moe = small_config();
  moe.num_experts = 4;
  moe.top_k = 2;
  ExpertCase c = make_expert_case(moe, 4, 3, 2);
  const Tensor map = test::tensor_of(DType::i32, {4}, {-1, -1, 0, 1});
  c.expert_map = ConstTensorView(map);
  c.topk_ids = test::tensor_of(DType::i32, {4, 2}, {2, 3, -1, -1, 0, -1, 2, 3});
  test::set(c.topk_weights, {3, 1}, 0.0);
  test::set(c.w2, {1, 0, 0}, NAN);  // Expert 3 yields NaN; row 3 gives it weight 0.
  const Tensor out = run_monolithic(c);
  EXPECT_TRUE(std::isnan(test::at(out, {0, 0})));
  for (std::int64_t m : {1, 2})
    for (double v : values(out.view().at(m))) EXPECT_EQ(v, 0.0);
  for (double v : values(out.view().at(3))) EXPECT_TRUE(std::isfinite(v));
}

TEST(ReferenceMonolithic, BitsDependOnNothingButTheRow) {
  const ExpertCase whole = make_expert_case(small_config(DType::bf16), 60, 5);
  const Tensor out = run_monolithic(whole);
  EXPECT_TRUE(test::same_bytes(out, run_monolithic(whole, {}, 1)));
  for (std::int64_t m : {0, 31, 59}) {
    ExpertCase alone = whole;
    alone.hidden_states = test::tensor_of(DType::bf16, {1, 19}, values(whole.hidden_states.view().at(m)));
    alone.topk_ids = test::tensor_of(DType::i32, {1, 3}, values(whole.topk_ids.view().at(m)));
    alone.topk_weights = test::tensor_of(DType::f32, {1, 3}, values(whole.topk_weights.view().at(m)));
    EXPECT_TRUE(test::same_bytes(run_monolithic(alone).view().at(0), out.view().at(m))) << m;
  }
}

TEST(ReferenceMonolithic, NothingInIsNothingOut) {
  EXPECT_EQ(run_monolithic(make_expert_case(small_config(), 0, 1)).view().numel(), 0);
}

TEST(ReferenceMonolithic, NeedsARouterAndNoZeroExperts) {
  ExpertCase c = make_expert_case(small_config(), 1, 1);
  EXPECT_THROW(test::make_experts(builtin_experts(), kMonolithic, c.problem), Error);
  c.problem.moe.zero_experts = 1;
  for (const Entry<Experts>& entry : builtin_experts()) {
    if (entry.name != kMonolithic) continue;
    EXPECT_TRUE(entry.monolithic);
    EXPECT_THAT(entry.supports(c.problem).reason(), HasSubstr("zero_experts 1"));
  }
}

}  // namespace
}  // namespace conclave
