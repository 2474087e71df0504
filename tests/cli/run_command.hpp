// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: arguments. Out: what the built `conclave` printed and its exit status.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace conclave {

struct CommandResult {
  int status = -1;
  std::string out, err;
  /// stdout as one JSON document; a test failure and null if it is not.
  nlohmann::json json() const;
};

/// With one thread unless the arguments say otherwise: tests share the machine, and threads that wait for each other
/// wait for everybody's time slices.
CommandResult run_command(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});

/// Exit status 2, nothing on stdout, and on stderr one line "conclave: ..." that contains every one of `parts`.
void expect_bad_input(const CommandResult& result, const std::vector<std::string>& parts);

/// A folder of this test, empty, removed with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace conclave
