// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// conclave info: registered parts, measured facts, and a cache that can be deleted, damaged or unwritable.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/run_command.hpp"
#include "conclave/registry.hpp"
#include "conclave/version.hpp"

namespace conclave {
namespace {

using testing::HasSubstr;

template <class Part>
std::vector<std::string> names_of(const PartList<Part>& list) {
  std::vector<std::string> names;
  for (const auto& entry : list.entries()) names.push_back(entry.name);
  return names;
}

TEST(Info, ListsEveryRegisteredPartInOrder) {
  const auto json = run_command({"info", "--json"}).json();
  const Registry registry = builtin_registry();
  EXPECT_EQ(json["version"], version());
  EXPECT_EQ(json["parts"]["router"].get<std::vector<std::string>>(), names_of(registry.routers));
  EXPECT_EQ(json["parts"]["dispatch"].get<std::vector<std::string>>(), names_of(registry.prepare_finalizes));
  EXPECT_EQ(json["parts"]["experts"].get<std::vector<std::string>>(), names_of(registry.experts));
  EXPECT_GT(json["devices"][0]["bytes_per_second"], 1e8);
  EXPECT_GT(json["devices"][0]["f32_flops"], 1e8);
}

class InfoCache : public testing::Test {
 protected:
  CommandResult info(const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"info", "--json", "--threads", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_command(arguments, {"XDG_CACHE_HOME=" + folder_.path()});
  }
  std::string file() const { return folder_ / "conclave/cpu.json"; }
  TemporaryFolder folder_;
};

TEST_F(InfoCache, MeasuresOnceAndAgainOnRequestOrDamage) {
  const auto first = info().json();
  EXPECT_EQ(first["devices"][0]["measured_now"], true);
  EXPECT_EQ(first["cache"]["path"], file());
  ASSERT_TRUE(std::filesystem::exists(file()));

  const auto second = info().json();
  EXPECT_EQ(second["devices"][0]["measured_now"], false);
  EXPECT_EQ(second["devices"][0]["bytes_per_second"], first["devices"][0]["bytes_per_second"]);
  EXPECT_EQ(info({"--remeasure"}).json()["devices"][0]["measured_now"], true);

  std::ofstream(file()) << "{\"entries\": {\"";
  const CommandResult damaged = info();
  EXPECT_EQ(damaged.status, 0) << damaged.err;
  EXPECT_EQ(damaged.json()["devices"][0]["measured_now"], true);
  EXPECT_EQ(info().json()["devices"][0]["measured_now"], false) << "the damaged file was not replaced";
}

TEST(Info, AnUnwritableCacheIsANote) {
  const CommandResult r = run_command({"info", "--json", "--threads", "1"}, {"XDG_CACHE_HOME=/proc/nowhere"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.json()["cache"]["note"], "");
  EXPECT_GT(r.json()["devices"][0]["bytes_per_second"], 1e8);
}

}  // namespace
}  // namespace conclave
