// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Outcomes -> rows and counts, above all: a mutation that nobody notices makes the report bad.
#include "verify/report.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace conclave::verify_detail {
namespace {

TEST(Report, AMutationIsCaughtWhenTheComparisonFails) {
  VerifyReport report;
  const VerifyOptions options;
  Reporter reporter(report, options);
  reporter.mutation("experts/x", "p", "swapped", Outcome::failed("relative error 0.5", 0.5));
  EXPECT_EQ(report.mutations, 1);
  EXPECT_EQ(report.mutations_caught, 1);
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.rows[0].check, "mutation:swapped");
  EXPECT_EQ(report.rows[0].verdict, Verdict::passed);
  EXPECT_EQ(report.rows[0].error, 0.5);
}

TEST(Report, AMutationThatTheComparisonPassesIsAFailure) {
  VerifyReport report;
  const VerifyOptions options;
  Reporter reporter(report, options);
  reporter.mutation("experts/x", "p", "swapped", Outcome{});
  EXPECT_EQ(report.mutations, 1);
  EXPECT_EQ(report.mutations_caught, 0);
  EXPECT_EQ(report.failed, 1);
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(report.rows[0].verdict, Verdict::failed);
}

TEST(Report, WhatACheckThrowsIsItsFailure) {
  VerifyReport report;
  VerifyOptions options;
  options.seed = 99;
  Reporter reporter(report, options);
  reporter.run("experts/x", "p", "repeat", []() -> Outcome { throw std::runtime_error("boom"); });
  EXPECT_EQ(report.failed, 1);
  EXPECT_EQ(report.rows[0].message, "threw: boom (seed 99)");
}

TEST(Report, SkippedChecksLeaveNoRow) {
  VerifyReport report;
  const VerifyOptions options;
  Reporter reporter(report, options);
  reporter.add("experts/x", "p", "repeat", Outcome::skip());
  EXPECT_TRUE(report.rows.empty());
  reporter.add("experts/x", "p", "repeat", Outcome{});
  EXPECT_EQ(report.passed, 1);
}

}  // namespace
}  // namespace conclave::verify_detail
