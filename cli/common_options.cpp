// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The options that every command takes.
#include <CLI/CLI.hpp>

#include "command.hpp"

namespace conclave::cli {

void add_common_options(CLI::App& app, CommonOptions& options) {
  app.add_flag("--json", options.json, "Print JSON on stdout and nothing else there");
  app.add_option("--device", options.device, "cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--threads", options.threads, "CPU threads; 0: every CPU that this process may use")
      ->capture_default_str()
      ->check(CLI::Range(0, 4096));
}

}  // namespace conclave::cli
