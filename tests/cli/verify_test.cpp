// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// conclave verify: prints the library's matrix; the filter narrows it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/run_command.hpp"

namespace conclave {
namespace {

using testing::HasSubstr;

TEST(VerifyCommand, QuickAndFiltered) {
  const CommandResult r = run_command({"verify", "--quick", "--filter", "reference_standard", "--json"});
  EXPECT_EQ(r.status, 0) << r.err << r.out;
  const auto json = r.json();
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["failed"], 0);
  EXPECT_EQ(json["mutations"], json["mutations_caught"]);
  EXPECT_GT(json["rows"].size(), 0U);
}

TEST(VerifyCommand, TextHasTheMatrixAndTheMutations) {
  const CommandResult r = run_command({"verify", "--quick", "--filter", "reference_standard"});
  EXPECT_EQ(r.status, 0) << r.err << r.out;
  EXPECT_THAT(r.out, HasSubstr("experts/reference_standard"));
  EXPECT_THAT(r.out, HasSubstr("mutations caught: "));
}

TEST(VerifyCommand, AFilterThatMatchesNothing) {
  expect_bad_input(run_command({"verify", "--quick", "--filter", "no such label"}), {"no such label"});
}

}  // namespace
}  // namespace conclave
