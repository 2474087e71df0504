// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A shell redirects both outputs into files; arguments are quoted.
#include "cli/run_command.hpp"

#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace conclave {
namespace {

std::string quoted(const std::string& text) {
  std::string result(1, '\'');
  for (const char c : text) {
    if (c == '\'')
      result += "'\\''";
    else
      result += c;
  }
  result += '\'';
  return result;
}

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace

nlohmann::json CommandResult::json() const {
  nlohmann::json value = nlohmann::json::parse(out, nullptr, false);
  EXPECT_FALSE(value.is_discarded()) << "not JSON: " << out << err;
  return value.is_discarded() ? nlohmann::json() : value;
}

CommandResult run_command(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  const TemporaryFolder folder;
  // A cache of its own: what another run of the tests measured must not decide this one.
  std::string line = "env";
  const auto add = [&](const char* before, const std::string& text) {
    line += before;
    line += quoted(text);
  };
  add(" ", std::string("XDG_CACHE_HOME=").append(CONCLAVE_COMMAND).append(".test-cache"));
  for (const std::string& variable : environment) add(" ", variable);
  add(" ", CONCLAVE_COMMAND);
  for (const std::string& argument : arguments) add(" ", argument);
  const bool a_command = !arguments.empty() && !arguments[0].starts_with("-");
  if (a_command && std::find(arguments.begin(), arguments.end(), "--threads") == arguments.end())
    line += " --threads 1";
  add(" >", folder / "out");
  add(" 2>", folder / "err");
  const int status = std::system(line.c_str());
  CommandResult result;
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  result.out = contents(folder / "out");
  result.err = contents(folder / "err");
  return result;
}

void expect_bad_input(const CommandResult& result, const std::vector<std::string>& parts) {
  EXPECT_EQ(result.status, 2) << result.out << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, testing::StartsWith("conclave: "));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  for (const std::string& part : parts) EXPECT_THAT(result.err, testing::HasSubstr(part));
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "conclave-test-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp " + pattern);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace conclave
