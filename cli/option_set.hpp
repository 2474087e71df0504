// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The options of one command. What CLI11 does, behind a few declarations: its headers take seconds to compile, and
// every command would pay.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace conclave::cli {

enum class Need { optional, required };

class OptionSet {
 public:
  /// Adds the subcommand `name` to `parent`. `footer` is printed below its help.
  OptionSet(CLI::App& parent, const char* name, const char* description, const char* footer);

  /// `name` is "--option", or "NAME" for a positional argument. T is std::string, a vector of them, std::int64_t,
  /// std::uint64_t or std::optional<double>. A value that is not empty is shown as the default.
  template <class T>
  OptionSet& add(const char* name, T& value, const std::string& help, Need need = Need::optional);
  /// T is int or double.
  template <class T>
  OptionSet& add_in_range(const char* name, T& value, T low, T high, const std::string& help);
  OptionSet& flag(const char* name, bool& value, const std::string& help);

  CLI::App* app() const noexcept { return app_; }

 private:
  CLI::App* app_;
};

}  // namespace conclave::cli
