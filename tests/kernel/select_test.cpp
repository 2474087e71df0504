// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Selection over lists of made-up parts: order, pairing of formats and kinds, pins, and a reason for every loser.
#include "kernel/select.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernel/problems.hpp"

namespace conclave {
namespace {

using ::testing::HasSubstr;

template <class Part>
Entry<Part> entry(std::string name, ActivationFormat format, bool monolithic, Support support = Support::yes()) {
  return {.name = std::move(name),
          .format = format,
          .monolithic = monolithic,
          .supports = [support](const Problem&) { return support; },
          .make = nullptr};
}

Registry lists() {
  using enum ActivationFormat;
  Registry r;
  r.routers.add_last(entry<Router>("router/a", standard, false));
  r.prepare_finalizes.add_last(entry<PrepareFinalize>("dispatch/standard", standard, false));
  r.prepare_finalizes.add_last(entry<PrepareFinalize>("dispatch/mono", standard, true));
  r.experts.add_last(entry<Experts>("experts/picky", standard, false, Support::no("hidden_size 40 is odd")));
  r.experts.add_last(entry<Experts>("experts/batched", batched_experts, false));
  r.experts.add_last(entry<Experts>("experts/good", standard, false));
  r.experts.add_last(entry<Experts>("experts/mono", standard, true));
  return r;
}

const Candidate& candidate(const StagePlan& stage, const std::string& name) {
  for (const Candidate& c : stage.candidates)
    if (c.name == name) return c;
  throw std::logic_error(name);
}

TEST(Select, FirstThatFitsWithAPartnerWins) {
  const Selection s = select(test::small_problem(), lists(), {});
  EXPECT_EQ(s.experts.chosen, "experts/good");
  EXPECT_EQ(s.prepare_finalize.chosen, "dispatch/standard");
  EXPECT_EQ(candidate(s.experts, "experts/picky").reason, "hidden_size 40 is odd");
  EXPECT_THAT(candidate(s.experts, "experts/batched").reason, HasSubstr("no prepare/finalize fits"));
  EXPECT_THAT(candidate(s.experts, "experts/mono").reason, HasSubstr("after the winner"));
  EXPECT_THAT(candidate(s.prepare_finalize, "dispatch/mono").reason, HasSubstr("monolithic standard"));
}

TEST(Select, PinsAreObeyedAndExplained) {
  PlanOptions options;
  options.experts = "experts/mono";
  const Selection s = select(test::small_problem(), lists(), options);
  EXPECT_EQ(s.experts.chosen, "experts/mono");
  EXPECT_EQ(s.prepare_finalize.chosen, "dispatch/mono");
  EXPECT_EQ(candidate(s.experts, "experts/good").reason, "experts/mono was asked for");
}

TEST(Select, ASlowerPartIsTakenOnlyWhereNothingElseFitsOrItIsAskedFor) {
  using enum ActivationFormat;
  Registry r = lists();
  const Support slower = Support::slower("fits; half the rate on this CPU");
  r.experts.add_first(entry<Experts>("experts/slow", standard, false, slower));
  r.routers.add_first(entry<Router>("router/slow", standard, false, slower));
  r.prepare_finalizes.add_first(entry<PrepareFinalize>("dispatch/slow", standard, false, slower));

  const Selection s = select(test::small_problem(), r, {});
  EXPECT_EQ(s.experts.chosen, "experts/good");
  EXPECT_EQ(s.router.chosen, "router/a");
  EXPECT_EQ(s.prepare_finalize.chosen, "dispatch/standard");
  EXPECT_TRUE(candidate(s.experts, "experts/slow").fits);
  EXPECT_THAT(candidate(s.experts, "experts/slow").reason, HasSubstr("half the rate"));
  EXPECT_THAT(candidate(s.prepare_finalize, "dispatch/slow").reason, HasSubstr("half the rate"));

  PlanOptions options;
  options.experts = "experts/slow";
  options.router = "router/slow";
  options.prepare_finalize = "dispatch/slow";
  const Selection asked = select(test::small_problem(), r, options);
  EXPECT_EQ(asked.experts.chosen, "experts/slow");
  EXPECT_EQ(asked.router.chosen, "router/slow");
  EXPECT_EQ(asked.prepare_finalize.chosen, "dispatch/slow");
}

TEST(Select, APinThatRefusesLeavesNothing) {
  PlanOptions options;
  options.experts = "experts/picky";
  EXPECT_FALSE(select(test::small_problem(), lists(), options).complete());
}

TEST(Select, UnknownPinsListTheRegisteredParts) {
  PlanOptions options;
  options.experts = "experts/gone";
  try {
    select(test::small_problem(), lists(), options);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("\"experts/gone\""));
    EXPECT_THAT(e.what(), HasSubstr("experts/picky, experts/batched"));
  }
}

TEST(Select, MonolithicPartsAreRefusedWhereTheLayerNeedsTheIds) {
  Problem p = test::small_problem();
  p.moe.zero_experts = 3;
  const Selection s = select(p, lists(), {});
  EXPECT_THAT(candidate(s.experts, "experts/mono").reason, HasSubstr("3 zero experts"));
}

TEST(PartList, KeepsOrderAndRefusesDoubleNames) {
  using enum ActivationFormat;
  PartList<Router> list;
  list.add_last(entry<Router>("router/b", standard, false));
  list.add_first(entry<Router>("router/a", standard, false));
  list.add_before("router/b", entry<Router>("router/ab", standard, false));
  EXPECT_EQ(list.entries()[1].name, "router/ab");
  EXPECT_THROW(list.add_last(entry<Router>("router/a", standard, false)), Error);
  EXPECT_THROW(list.add_before("router/z", entry<Router>("router/y", standard, false)), Error);
}

}  // namespace
}  // namespace conclave
