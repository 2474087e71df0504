// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the command line. Out: results on stdout, errors as one line on stderr, and the exit status (command.hpp).
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "command.hpp"
#include "conclave/error.hpp"
#include "conclave/version.hpp"

namespace conclave::cli {
namespace {

int complain(const std::string& message, int status) {
  std::fprintf(stderr, "conclave: %s\n", message.c_str());
  return status;
}

/// One line whatever the parser put into its message.
std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

int run_command(const std::vector<Command>& commands) {
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    const int status = command.run();
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return complain("cannot write the output", kBadInput);
    return status;
  }
  return complain("no command given (see conclave --help)", kBadInput);
}

int main_checked(int argc, char** argv) {
  CLI::App app("The Mixture-of-Experts layer as a composition of exchangeable parts.", "conclave");
  app.set_version_flag("--version", std::string("conclave ") + version());
  app.require_subcommand(0, 1);  // run_command() has a better message for none
  app.footer(
      "Example: conclave check data/tiny-moe --expected data/tiny-moe/io.safetensors\n"
      "Exit status: 0 good, 1 the answer is wrong or nothing fits, 2 bad usage or bad input.");
  const std::vector<Command> commands = {add_info(app),   add_inspect(app), add_plan(app),
                                         add_run(app),    add_check(app),   add_replay(app),
                                         add_verify(app), add_bench(app),   add_quantize(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return complain(first_line(error.what()) + " (see conclave --help)", kBadInput);
  }
  return run_command(commands);
}

}  // namespace
}  // namespace conclave::cli

int main(int argc, char** argv) {
  using namespace conclave::cli;
  try {
    return main_checked(argc, argv);
  } catch (const conclave::Error& error) {
    return complain(error.what(), error.kind() == conclave::ErrorKind::unsupported ? kWrong : kBadInput);
  } catch (const std::bad_alloc&) {
    return complain("out of memory", kBadInput);
  } catch (const std::exception& error) {
    return complain(error.what(), kBadInput);
  }
}
