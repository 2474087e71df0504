// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Help, exit statuses and one-line errors of every command.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/run_command.hpp"
#include "cli/sample.hpp"
#include "conclave/version.hpp"

namespace conclave {
namespace {

using testing::HasSubstr;

const std::vector<std::vector<std::string>>& commands() {
  static const std::vector<std::vector<std::string>> all = {
      {"info"},
      {"inspect", sample_folder()},
      {"plan", "--shape", "8,2,40,24"},
      {"run", sample_folder(), "--input", sample_io(), "--output", "/nonexistent/out"},
      {"check", sample_folder(), "--expected", sample_io()},
      {"replay", "/nonexistent/case"},
      {"verify"},
      {"quantize", sample_folder(), "--weights", "mxfp4", "--output", "/nonexistent/out"},
      {"bench", "--shape", "8,2,40,24"},
  };
  return all;
}

TEST(Usage, HelpOfEveryCommandHasAnExample) {
  for (const auto& command : commands()) {
    const CommandResult r = run_command({command[0], "--help"});
    EXPECT_EQ(r.status, 0) << command[0];
    EXPECT_THAT(r.out, HasSubstr("Example"));
    EXPECT_THAT(r.out, HasSubstr("conclave " + command[0]));
    for (const char* option : {"--json", "--device", "--threads"}) EXPECT_THAT(r.out, HasSubstr(option)) << command[0];
    EXPECT_EQ(r.err, "");
  }
  EXPECT_THAT(run_command({"--help"}).out, HasSubstr("Exit status"));
}

TEST(Usage, Version) {
  EXPECT_EQ(run_command({"--version"}).out, std::string("conclave ") + version() + "\n");
}

TEST(Usage, BadUsageIsOneLineAndStatus2) {
  expect_bad_input(run_command({}), {"see conclave --help"});
  expect_bad_input(run_command({"frobnicate"}), {"frobnicate"});
  expect_bad_input(run_command({"plan", "--nonsense"}), {"--nonsense"});
  expect_bad_input(run_command({"check", sample_folder()}), {"--expected"});
  expect_bad_input(run_command({"info", "--threads", "many"}), {"many"});
  expect_bad_input(run_command({"info", "--threads", "-1"}), {"-1"});
}

TEST(Usage, EveryCommandRefusesCudaAndUnknownDevices) {
  for (auto command : commands()) {
    command.insert(command.end(), {"--device", "cuda:1"});
    // Whether the back end, the driver or the GPU is missing, the message says so; no machine has a hundredth.
    command.back() = "cuda:100";
    const CommandResult r = run_command(command);
    EXPECT_EQ(r.status, 2) << r.err;
    EXPECT_NE(r.err.find("cuda"), std::string::npos) << r.err;
    command.back() = "tpu";
    expect_bad_input(run_command(command), {"tpu", "cpu, cuda or cuda:N"});
  }
}

TEST(Usage, OutputThatCannotBeWrittenIsAnError) {
  const CommandResult r = run_command({"inspect", sample_folder()});
  ASSERT_EQ(r.status, 0) << r.err;
  const std::string line = std::string(CONCLAVE_COMMAND) + " inspect " + sample_folder() + " >/dev/full 2>/dev/null";
  EXPECT_NE(std::system(line.c_str()), 0);
}

}  // namespace
}  // namespace conclave
