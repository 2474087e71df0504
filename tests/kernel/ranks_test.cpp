// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Every prepare/finalize that exchanges tokens, with every experts part it fits, on 1 to 8 simulated ranks, against one
// rank: bitwise, because the order of every sum is defined (docs/numerics.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "kernel/rank_fixture.hpp"
#include "support/message_of.hpp"

namespace conclave {
namespace {

using test::RankCase;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct ExchangePart {
  const char* name;
  All2All all2all;
};
constexpr ExchangePart kExchangeParts[] = {{"dispatch/all_to_all", All2All::all_to_all},
                                           {"dispatch/allgather_reducescatter", All2All::allgather_reducescatter},
                                           {"dispatch/low_latency", All2All::low_latency}};

/// The sum over ranks of what each rank's experts give alone, in rank order, in f32, rounded once.
std::vector<double> sum_of_partials(const RankCase& c, const std::string& experts) {
  std::vector<float> sum(static_cast<std::size_t>(c.first.back() * c.whole.moe().hidden_size), 0.0f);
  for (int rank = 0; rank < c.num_ranks(); ++rank) {
    const std::vector<double> partial = test::values(test::run_alone(c, experts, "dispatch/no_ep", rank));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<float>(partial[i]);
  }
  const Tensor rounded(c.whole.moe().dtype, {static_cast<std::int64_t>(sum.size())});
  for (std::size_t i = 0; i < sum.size(); ++i) test::store(rounded, static_cast<std::int64_t>(i), sum[i]);
  return test::values(rounded);
}

void expect_same(const RankCase& c, const std::string& experts, const ExchangePart& part) {
  const std::string label = std::string(part.name) + " + " + experts + ", " + c.label;
  const std::vector<double> got = test::values(test::run_on_ranks(c, experts, part.name, part.all2all));
  if (part.all2all == All2All::low_latency) {
    EXPECT_EQ(got, test::values(test::run_alone(c, experts, "dispatch/no_ep_batched"))) << label;
    return;
  }
  const Tensor alone = test::run_alone(c, experts, "dispatch/no_ep");
  EXPECT_LT(test::rel_error(got, test::values(alone)), c.whole.moe().dtype == DType::f32 ? 1e-5 : 1.2e-2) << label;
  // Partial rows that finalize reduces stay in f32, which no kernel of one rank shows in a narrower type.
  const bool shown = experts != "experts/reference_standard" || c.whole.moe().dtype == DType::f32;
  if (!shown) return;
  EXPECT_EQ(got, sum_of_partials(c, experts)) << label;
}

/// Experts that fit the part: modular, its format, and this problem.
std::vector<std::string> experts_for(const RankCase& c, const ExchangePart& part) {
  const Registry registry = builtin_registry();
  const Entry<PrepareFinalize>& ends = *registry.prepare_finalizes.find(part.name);
  const Problem p = c.problem_of(0, part.all2all);
  EXPECT_TRUE(ends.supports(p)) << ends.supports(p).reason();
  std::vector<std::string> names;
  for (const auto& entry : registry.experts.entries())
    if (composable(entry, ends) && entry.supports(p)) names.push_back(entry.name);
  return names;
}

class RanksOf : public testing::TestWithParam<int> {};

TEST_P(RanksOf, EveryPartWithEveryExpertsIsOneRank) {
  std::uint64_t seed = 100 * static_cast<std::uint64_t>(GetParam());
  for (const ExchangePart& part : kExchangeParts)
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const RankCase c = test::random_rank_case(GetParam(), dtype, ++seed);
      const std::vector<std::string> names = experts_for(c, part);
      EXPECT_FALSE(names.empty());
      for (const std::string& experts : names) expect_same(c, experts, part);
    }
}

INSTANTIATE_TEST_SUITE_P(Simulated, RanksOf, testing::Values(1, 2, 3, 4, 8));

/// Problems that nobody chose. A failure prints the seed; put it in place of the random one to see it again.
TEST(Ranks, RandomProblems) {
  const std::uint64_t base = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(base));
  for (std::uint64_t i = 0; i < 200; ++i) {
    const int sizes[] = {1, 2, 3, 4, 8};
    const RankCase c = test::random_rank_case(sizes[i % 5], i % 3 == 0 ? DType::bf16 : DType::f32, base + i);
    const ExchangePart& part = kExchangeParts[i / 5 % 3];
    const std::vector<std::string> names = experts_for(c, part);
    expect_same(c, names[i % names.size()], part);
    if (HasFailure()) return;
  }
}

RankCase fixed_case(std::vector<std::int64_t> first, MoeConfig moe, std::uint64_t seed = 3) {
  RankCase c;
  c.first = std::move(first);
  moe.max_num_tokens = c.first.back();
  c.whole = test::make_expert_case(moe, c.first.back(), seed);
  c.label = "fixed";
  return c;
}

TEST(Ranks, MoreRanksThanExperts) {
  MoeConfig moe = test::small_config();
  moe.num_experts = 3;
  for (const ExchangePart& part : kExchangeParts) {
    const RankCase c = fixed_case({0, 2, 2, 5, 6, 6, 9, 10, 11}, moe);
    for (const std::string& experts : experts_for(c, part)) expect_same(c, experts, part);
  }
}

TEST(Ranks, OnlyOneRankHasTokens) {
  for (const ExchangePart& part : kExchangeParts) {
    const RankCase c = fixed_case({0, 0, 0, 9, 9}, test::small_config(DType::bf16));
    for (const std::string& experts : experts_for(c, part)) expect_same(c, experts, part);
  }
}

TEST(Ranks, NobodyHasTokens) {
  for (const ExchangePart& part : kExchangeParts) {
    RankCase c = fixed_case({0, 0, 0, 0}, test::small_config());
    c.whole.problem.moe.max_num_tokens = 4;
    for (const std::string& experts : experts_for(c, part)) {
      const Tensor out = test::run_on_ranks(c, experts, part.name, part.all2all);
      EXPECT_EQ(out.view().numel(), 0);
    }
  }
}

TEST(Ranks, ARankWithoutLocalPicksGetsZeros) {
  for (const ExchangePart& part : kExchangeParts) {
    RankCase c = fixed_case({0, 3, 5}, test::small_config());
    for (std::int64_t i = 0; i < c.whole.topk_ids.view().numel(); ++i) c.whole.topk_ids.as<std::int32_t>()[i] = -1;
    for (const std::string& experts : experts_for(c, part))
      for (const double v : test::values(test::run_on_ranks(c, experts, part.name, part.all2all))) EXPECT_EQ(v, 0.0);
  }
}

/// A NaN row of an expert whose weight is zero must not reach the output over any wire.
TEST(Ranks, ZeroWeightsHideNaN) {
  for (const ExchangePart& part : kExchangeParts) {
    RankCase c = fixed_case({0, 3, 5}, test::small_config());
    for (std::int64_t i = 0; i < c.whole.w2.view().at(4).numel(); ++i)
      test::store(c.whole.w2.view().at(4), i, std::nan(""));
    for (std::int64_t m = 0; m < 5; ++m)
      for (std::int64_t j = 0; j < 3; ++j)
        if (test::at(c.whole.topk_ids, {m, j}) == 4) test::set(c.whole.topk_weights, {m, j}, 0);
    for (const std::string& experts : experts_for(c, part)) expect_same(c, experts, part);
  }
}

TEST(Ranks, ASecondRunInUsedMemoryIsTheSame) {
  for (const ExchangePart& part : kExchangeParts) {
    const RankCase c = test::random_rank_case(3, DType::f32, 77);
    for (const std::string& experts : experts_for(c, part))
      EXPECT_TRUE(test::same_bytes(test::run_on_ranks(c, experts, part.name, part.all2all, 1),
                                   test::run_on_ranks(c, experts, part.name, part.all2all, 3)));
  }
}

/// Rank 1 throws between prepare and finalize of the others: all end, and say who.
TEST(Ranks, ARankThatFailsInTheMiddleEndsTheOthers) {
  const RankCase c = fixed_case({0, 3, 5, 9}, test::small_config());
  const Registry registry = builtin_registry();
  for (const ExchangePart& part : kExchangeParts) {
    std::vector<std::string> messages(3, "no error");
    const std::string thrown = test::message_of([&] {
      run_ranks(3, [&](Communicator& communicator) {
        const int rank = communicator.rank();
        const Problem p = c.problem_of(rank, part.all2all);
        const auto ends = registry.prepare_finalizes.find(part.name)->make({p, nullptr, &communicator});
        auto& modular = dynamic_cast<ModularPrepareFinalize&>(*ends);
        auto executor = make_inline_executor();
        const test::PoisonedArena memory([&](Arena& arena) { modular.plan_scratch(arena, c.count(rank)); });
        Arena arena = memory.arena();
        PrepareInput input;
        input.hidden_states = c.whole.hidden_states.view().narrow(0, c.begin(rank), c.count(rank));
        input.routing = Routing{c.whole.topk_ids.view().narrow(0, c.begin(rank), c.count(rank)),
                                c.whole.topk_weights.view().narrow(0, c.begin(rank), c.count(rank))};
        // Some parts wait in the first half, others in the second: rank 1 ends the others in either.
        messages[static_cast<std::size_t>(rank)] = test::message_of([&] {
          Pending<Prepared> pending = modular.prepare_async(input, arena, Stream::cpu(*executor));
          if (rank == 1) return;
          pending.hook();
          pending.finish();
          communicator.barrier();
        });
        if (rank == 1) throw Error(ErrorKind::out_of_memory, "no room for experts");
      });
    });
    EXPECT_THAT(thrown, AllOf(HasSubstr("rank 1 failed after"), HasSubstr("no room for experts"))) << part.name;
    EXPECT_EQ(messages[0], thrown);
    EXPECT_EQ(messages[2], thrown);
  }
}

/// One rank composes another exchange: an error everywhere, not a hang.
TEST(Ranks, AnotherPartOnOneRankIsAnErrorOnAll) {
  const RankCase c = fixed_case({0, 3, 5, 9}, test::small_config());
  const Registry registry = builtin_registry();
  std::vector<std::string> messages(3, "no error");
  const std::string thrown = test::message_of([&] {
    run_ranks(3, [&](Communicator& communicator) {
      const int rank = communicator.rank();
      const ExchangePart& part = kExchangeParts[rank == 2 ? 1 : 0];
      const Problem p = c.problem_of(rank, part.all2all);
      const auto ends = registry.prepare_finalizes.find(part.name)->make({p, nullptr, &communicator});
      auto& modular = dynamic_cast<ModularPrepareFinalize&>(*ends);
      auto executor = make_inline_executor();
      const test::PoisonedArena memory([&](Arena& arena) { modular.plan_scratch(arena, c.count(rank)); });
      Arena arena = memory.arena();
      PrepareInput input;
      input.hidden_states = c.whole.hidden_states.view().narrow(0, c.begin(rank), c.count(rank));
      input.routing = Routing{c.whole.topk_ids.view().narrow(0, c.begin(rank), c.count(rank)),
                              c.whole.topk_weights.view().narrow(0, c.begin(rank), c.count(rank))};
      const std::string message = test::message_of([&] { modular.prepare(input, arena, Stream::cpu(*executor)); });
      messages[static_cast<std::size_t>(rank)] = message;
      throw Error(ErrorKind::communication, message);
    });
  });
  for (const std::string& message : messages)
    EXPECT_THAT(message, AllOf(HasSubstr("all_to_all"), HasSubstr("all_gather"), HasSubstr("rank 2"))) << thrown;
}

TEST(Ranks, WithoutACommunicatorItSaysSo) {
  const RankCase c = fixed_case({0, 3, 5}, test::small_config());
  const Problem p = c.problem_of(1, All2All::all_to_all);
  const auto ends = builtin_registry().prepare_finalizes.find("dispatch/all_to_all")->make({p, nullptr});
  EXPECT_EQ(ends->num_dispatchers(), 2);
  EXPECT_TRUE(ends->output_is_reduced());
  auto& modular = dynamic_cast<ModularPrepareFinalize&>(*ends);
  auto executor = make_inline_executor();
  const test::PoisonedArena memory([&](Arena& arena) { modular.plan_scratch(arena, 5); });
  Arena arena = memory.arena();
  PrepareInput input;
  input.hidden_states = c.whole.hidden_states;
  input.routing = Routing{c.whole.topk_ids, c.whole.topk_weights};
  EXPECT_THAT(test::message_of([&] { modular.prepare(input, arena, Stream::cpu(*executor)); }),
              HasSubstr("dispatch/all_to_all: made without a communicator, expected one of 2 ranks"));
}

}  // namespace
}  // namespace conclave
