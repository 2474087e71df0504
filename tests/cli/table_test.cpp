// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Alignment and trailing blanks.
#include "cli/table.hpp"

#include <gtest/gtest.h>

namespace conclave::cli {
namespace {

TEST(Table, AlignsColumns) {
  Table table({"a", "number", "c"}, "lrl");
  EXPECT_TRUE(table.empty());
  table.add({"long cell", "7", ""});
  table.add({"x"});
  EXPECT_FALSE(table.empty());
  EXPECT_EQ(table.str(),
            "a          number  c\n"
            "--------------------\n"
            "long cell       7\n"
            "x\n");
}

}  // namespace
}  // namespace conclave::cli
