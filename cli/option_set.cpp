// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One CLI11 call for each function.
#include "option_set.hpp"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

namespace conclave::cli {

OptionSet::OptionSet(CLI::App& parent, const char* name, const char* description, const char* footer)
    : app_(parent.add_subcommand(name, description)) {
  app_->footer(footer);
}

template <class T>
OptionSet& OptionSet::add(const char* name, T& value, const std::string& help, Need need) {
  CLI::Option* option = app_->add_option(name, value, help);
  if constexpr (std::is_arithmetic_v<T>)
    option->capture_default_str();
  else if constexpr (std::is_same_v<T, std::string>) {
    if (!value.empty()) option->capture_default_str();
  }
  if (need == Need::required) option->required();
  return *this;
}
template OptionSet& OptionSet::add(const char*, std::string&, const std::string&, Need);
template OptionSet& OptionSet::add(const char*, std::vector<std::string>&, const std::string&, Need);
template OptionSet& OptionSet::add(const char*, std::int64_t&, const std::string&, Need);
template OptionSet& OptionSet::add(const char*, std::uint64_t&, const std::string&, Need);
template OptionSet& OptionSet::add(const char*, std::optional<double>&, const std::string&, Need);

template <class T>
OptionSet& OptionSet::add_in_range(const char* name, T& value, T low, T high, const std::string& help) {
  app_->add_option(name, value, help)->capture_default_str()->check(CLI::Range(low, high));
  return *this;
}
template OptionSet& OptionSet::add_in_range(const char*, int&, int, int, const std::string&);
template OptionSet& OptionSet::add_in_range(const char*, double&, double, double, const std::string&);

OptionSet& OptionSet::flag(const char* name, bool& value, const std::string& help) {
  app_->add_flag(name, value, help);
  return *this;
}

}  // namespace conclave::cli
