// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The engine judged by parts that are wrong in one known way, and then the built-in registry judged by the engine.
#include "conclave/verify.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "verify/broken_router.hpp"
#include "verify/mutations.hpp"
#include "verify/plain_part.hpp"

namespace conclave {
namespace {

using test::Defect;
using ::testing::Contains;
using ::testing::HasSubstr;

VerifyReport run(const Registry& registry, const VerifyOptions& options) {
  const std::unique_ptr<Executor> executor = make_executor(2);
  return verify(registry, cpu_facts(2), Stream::cpu(*executor), options);
}

/// The checks that failed for the plain part.
std::set<std::string> failed_checks(const VerifyReport& report) {
  std::set<std::string> checks;
  for (const VerifyRow& row : report.rows)
    if (row.verdict == Verdict::failed) checks.insert(row.check);
  return checks;
}

std::string failures(const VerifyReport& report) {
  std::string text;
  int lines = 0;
  for (const VerifyRow& row : report.rows)
    if (row.verdict == Verdict::failed && ++lines <= 20)
      text += row.part + " | " + row.problem + " | " + row.check + " | " + row.message + "\n";
  return text;
}

struct Expectation {
  Defect defect;
  std::string check;
};
void PrintTo(const Expectation& e, std::ostream* out) {
  *out << "defect " << static_cast<int>(e.defect) << ", " << e.check;
}

class Defects : public ::testing::TestWithParam<Expectation> {};

TEST_P(Defects, IsReportedByTheRightCheck) {
  VerifyOptions options;
  options.quick = true;
  // Whole layers have no guard behind their workspace, so the part that writes there runs as a kernel only.
  options.filter = GetParam().defect == Defect::writes_past_scratch ? "experts/plain + dispatch/" : "experts/plain";
  const VerifyReport report = run(test::registry_with(GetParam().defect), options);
  EXPECT_FALSE(report.ok());
  EXPECT_THAT(failed_checks(report), Contains(GetParam().check)) << failures(report);
}

INSTANTIATE_TEST_SUITE_P(
    Verify, Defects,
    ::testing::Values(
        Expectation{Defect::swaps_gate_up, "reference"}, Expectation{Defect::ignores_limit, "reference"},
        Expectation{Defect::ignores_limit, "flipped_field"}, Expectation{Defect::ignores_w2_bias, "reference"},
        Expectation{Defect::ignores_expert_map, "reference"}, Expectation{Defect::weighs_twice, "reference"},
        Expectation{Defect::forgets_last_row, "poison"}, Expectation{Defect::forgets_empty_rows, "poison"},
        Expectation{Defect::depends_on_batch, "batch_invariance"}, Expectation{Defect::mixes_rows, "row_isolation"},
        Expectation{Defect::depends_on_threads, "thread_count"}, Expectation{Defect::differs_each_call, "repeat"},
        Expectation{Defect::modifies_input, "inputs_unchanged"}, Expectation{Defect::multiplies_zero_weight, "poison"},
        Expectation{Defect::reads_scratch, "poison"}, Expectation{Defect::writes_past_scratch, "poison"},
        Expectation{Defect::ignores_update, "update"}, Expectation{Defect::takes_foreign_weights, "foreign_weights"},
        Expectation{Defect::ignores_has_bias, "flipped_field"}, Expectation{Defect::throws, "run"}));

struct RouterExpectation {
  test::RouterDefect defect;
  std::string check;
};
void PrintTo(const RouterExpectation& e, std::ostream* out) {
  *out << "defect " << static_cast<int>(e.defect) << ", " << e.check;
}

class RouterDefects : public ::testing::TestWithParam<RouterExpectation> {};

TEST_P(RouterDefects, IsReportedByTheRightCheck) {
  VerifyOptions options;
  options.quick = true;
  const VerifyReport report = run(test::registry_with_router(GetParam().defect), options);
  if (GetParam().defect == test::RouterDefect::none) {
    EXPECT_TRUE(report.ok()) << failures(report);
    EXPECT_GT(report.mutations, 10);
  } else {
    EXPECT_THAT(failed_checks(report), Contains(GetParam().check)) << failures(report);
  }
}

INSTANTIATE_TEST_SUITE_P(Verify, RouterDefects,
                         ::testing::Values(RouterExpectation{test::RouterDefect::none, ""},
                                           RouterExpectation{test::RouterDefect::swaps_first_two, "reference"},
                                           RouterExpectation{test::RouterDefect::leaks_bias, "reference"},
                                           RouterExpectation{test::RouterDefect::drops_factor, "reference"},
                                           RouterExpectation{test::RouterDefect::keeps_nan_weight, "reference"},
                                           RouterExpectation{test::RouterDefect::forgets_last_slot, "reference"},
                                           RouterExpectation{test::RouterDefect::depends_on_batch, "batch_invariance"},
                                           RouterExpectation{test::RouterDefect::fails_on_zero_tokens, "zero_tokens"}));

TEST(Verify, ARightPartPassesAndEveryMutationIsCaught) {
  VerifyOptions options;
  options.filter = "experts/plain";
  const VerifyReport report = run(test::registry_with(Defect::none), options);
  EXPECT_TRUE(report.ok()) << failures(report);
  EXPECT_GT(report.passed, 500);
  EXPECT_EQ(report.mutations, report.mutations_caught);
  std::set<std::string> tried;
  for (const VerifyRow& row : report.rows) tried.insert(row.check);
  for (const verify_detail::Mutation& mutation : verify_detail::mutations()) {
    if (mutation.name == "dropped_scaling_factor") continue;  // Folded into the weights that a modular part is given.
    EXPECT_THAT(tried, Contains("mutation:" + std::string(mutation.name)));
  }
}

TEST(Verify, TheQuickGridStillTriesTheMistakesThatMatterMost) {
  VerifyOptions options;
  options.quick = true;
  options.filter = "experts/plain";
  const VerifyReport report = run(test::registry_with(Defect::none), options);
  std::set<std::string> tried;
  for (const VerifyRow& row : report.rows) tried.insert(row.check);
  for (const char* name :
       {"swapped_gate_up", "wrong_layout_tag", "dropped_clamp", "dropped_w13_bias", "dropped_w2_bias", "dropped_weight",
        "weight_applied_twice", "off_by_one_expert", "missing_last_hidden", "missing_last_intermediate",
        "weight_moved_to_output", "remote_expert_computed", "duplicates_counted_once", "scaled_shared"})
    EXPECT_THAT(tried, Contains("mutation:" + std::string(name)));
}

std::set<std::string> checks_of_ranks(const std::string& filter) {
  VerifyOptions options;
  options.quick = true;
  options.filter = filter;
  const VerifyReport report = run(builtin_registry(), options);
  EXPECT_TRUE(report.ok()) << failures(report);
  std::set<std::string> tried;
  for (const VerifyRow& row : report.rows)
    if (row.problem.find(" ranks ") != std::string::npos) tried.insert(row.check);
  return tried;
}

TEST(Verify, RanksMicroBatchesAndTheTailAreTriedWithTheirMistakes) {
  EXPECT_THAT(checks_of_ranks("experts/reference_standard + dispatch/all_to_all"),
              ::testing::IsSupersetOf({"ranks", "repeat", "micro_batches", "mutation:dropped_rank",
                                       "mutation:experts_of_another_rank", "mutation:scale_of_wrong_expert",
                                       "mutation:wrong_nibble_order", "mutation:doubled_shared",
                                       "mutation:doubled_routed_scale", "mutation:rows_of_sibling"}));
  EXPECT_THAT(checks_of_ranks("experts/naive_batched + dispatch/low_latency"), Contains("same_bits_as_one_rank"));
  EXPECT_THAT(
      checks_of_ranks("experts/reference_unfinalized + dispatch/no_ep"),
      ::testing::IsSupersetOf({"ranks", "tail", "mutation:tail_missing_residual", "mutation:tail_doubled_shared",
                               "mutation:tail_doubled_routed_scale", "mutation:tail_dropped_rank"}));
}

TEST(Verify, RefusalsCarryTheReasonAndAreNoFailures) {
  VerifyOptions options;
  options.quick = true;
  options.filter = "experts/plain";
  const VerifyReport report = run(test::registry_with(Defect::none), options);
  EXPECT_GT(report.refused, 0);
  bool found = false;
  for (const VerifyRow& row : report.rows)
    if (row.verdict == Verdict::refused && row.message.find("dtype bf16") != std::string::npos) found = true;
  EXPECT_TRUE(found);
}

TEST(Verify, FailuresNameTheSeedAndAnotherSeedIsAnotherProblem) {
  VerifyOptions options;
  options.quick = true;
  options.filter = "experts/plain + dispatch/no_ep silu gate_up f32";
  options.seed = 4711;
  const VerifyReport report = run(test::registry_with(Defect::swaps_gate_up), options);
  ASSERT_FALSE(report.rows.empty());
  double error = 0;
  for (const VerifyRow& row : report.rows)
    if (row.check == "reference") {
      EXPECT_THAT(row.message, HasSubstr("seed 4711"));
      error = row.error;
    }
  EXPECT_GT(error, 0.1);
  options.seed = 4712;
  for (const VerifyRow& row : run(test::registry_with(Defect::swaps_gate_up), options).rows) {
    if (row.check == "reference") {
      EXPECT_NE(row.error, error);
    }
  }
}

TEST(Verify, TheFilterSelectsByPartAndProblem) {
  VerifyOptions options;
  options.quick = true;
  options.filter = "weight_on_input";
  int calls = 0;
  options.progress = [&](const std::string& label) {
    ++calls;
    EXPECT_THAT(label, HasSubstr("weight_on_input"));
  };
  const VerifyReport report = run(test::registry_with(Defect::none), options);
  EXPECT_GT(calls, 0);
  for (const VerifyRow& row : report.rows) EXPECT_THAT(row.part + " " + row.problem, HasSubstr("weight_on_input"));
}

TEST(Verify, TheBuiltinRegistryPasses) {
  VerifyOptions options;
  options.quick = CONCLAVE_QUICK_VERIFY;  // Sanitizers cost a factor of ten.
  const VerifyReport report = run(builtin_registry(), options);
  EXPECT_TRUE(report.ok()) << failures(report);
  EXPECT_GT(report.passed, 1000);
  EXPECT_GT(report.mutations, 100);
  EXPECT_EQ(report.mutations, report.mutations_caught);
  std::set<std::string> tried;
  for (const VerifyRow& row : report.rows)
    if (row.part.starts_with("experts/reference_standard")) tried.insert(row.check);
  for (const verify_detail::Mutation& mutation : verify_detail::quant_mutations()) {
    if (!options.quick) {
      EXPECT_THAT(tried, Contains("mutation:" + std::string(mutation.name)));
    }
  }
}

}  // namespace
}  // namespace conclave
