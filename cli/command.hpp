// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What every command shares: exit statuses, common options, and the list of commands. A command is one file
// cmd_<name>.cpp that adds its options to the parser and returns what to run once they are parsed.
#pragma once

#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace conclave::cli {

class OptionSet;

enum ExitStatus : int {
  kOk = 0,
  kWrong = 1,     ///< It ran, and the answer is wrong or nothing fits.
  kBadInput = 2,  ///< Bad usage or bad input.
};

struct CommonOptions {
  bool json = false;
  std::string device = "cpu";
  int threads = 0;  ///< 0: every CPU that this process may use.
};

struct Command {
  CLI::App* app = nullptr;
  std::function<int()> run;  ///< Returns an ExitStatus; throws Error.
};

/// --json, --device, --threads.
void add_common_options(OptionSet& options, CommonOptions& common);

Command add_info(CLI::App& app);
Command add_inspect(CLI::App& app);
Command add_plan(CLI::App& app);
Command add_run(CLI::App& app);
Command add_quantize(CLI::App& app);
Command add_check(CLI::App& app);
Command add_replay(CLI::App& app);
Command add_verify(CLI::App& app);
Command add_bench(CLI::App& app);

}  // namespace conclave::cli
