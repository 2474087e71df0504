// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The options that every command takes.
#include "command.hpp"
#include "option_set.hpp"

namespace conclave::cli {

void add_common_options(OptionSet& options, CommonOptions& common) {
  options.flag("--json", common.json, "Print JSON on stdout and nothing else there")
      .add("--device", common.device, "cpu, cuda or cuda:N")
      .add_in_range("--threads", common.threads, 0, 4096, "CPU threads; 0: every CPU that this process may use");
}

}  // namespace conclave::cli
