// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The cache file: entries side by side, and anything odd is "not there".
#include "cli/ceiling_cache.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cli/run_command.hpp"

namespace conclave::cli {
namespace {

constexpr CpuCeilings kSome{1e10, 2e11, 3e11, 4e11};

TEST(CeilingCache, KeepsOtherEntries) {
  const TemporaryFolder folder;
  const std::string path = folder / "a/b.json";
  EXPECT_EQ(store_ceilings(path, "one", kSome), "");
  CpuCeilings other = kSome;
  other.f32_flops = 7e11;
  EXPECT_EQ(store_ceilings(path, "two", other), "");
  ASSERT_TRUE(load_ceilings(path, "one").has_value());
  EXPECT_EQ(load_ceilings(path, "one")->read_bytes_per_second, 1e10);
  EXPECT_EQ(load_ceilings(path, "one")->f32_flops, 2e11);
  EXPECT_EQ(load_ceilings(path, "one")->bf16_flops, 3e11);
  EXPECT_EQ(load_ceilings(path, "one")->f16_flops, 4e11);
  EXPECT_EQ(load_ceilings(path, "two")->f32_flops, 7e11);
  EXPECT_FALSE(load_ceilings(path, "three").has_value());
  // Written beside and renamed: no temporary file is left.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "a"), {}), 1);
}

TEST(CeilingCache, OddFilesAreAbsent) {
  const TemporaryFolder folder;
  const std::string path = folder / "c.json";
  EXPECT_FALSE(load_ceilings("", "k").has_value());
  EXPECT_FALSE(load_ceilings(path, "k").has_value());
  EXPECT_FALSE(load_ceilings(folder.path(), "k").has_value());
  for (const char* text :
       {"", "[]", "null", "{\"entries\": 3}", "{\"entries\": {\"k\": 1}}", "{\"entries\": {\"k\": {}}}",
        "{\"entries\": {\"k\": {\"read_bytes_per_second\": -1, \"f32_flops\": 1, \"bf16_flops\": 1, \"f16_flops\": "
        "1}}}",
        "{\"entries\": {\"k\": {\"read_bytes_per_second\": \"1\", \"f32_flops\": 1, \"bf16_flops\": 1, "
        "\"f16_flops\": 1}}}",
        "\xff\xfe\x00garbage"}) {
    std::ofstream(path) << text;
    EXPECT_FALSE(load_ceilings(path, "k").has_value()) << text;
    EXPECT_EQ(store_ceilings(path, "k", kSome), "") << text;
    EXPECT_TRUE(load_ceilings(path, "k").has_value()) << text;
  }
}

TEST(CeilingCache, SaysWhyItCannotBeWritten) {
  EXPECT_NE(store_ceilings("", "k", kSome), "");
  EXPECT_NE(store_ceilings("/proc/nowhere/c.json", "k", kSome), "");
}

}  // namespace
}  // namespace conclave::cli
