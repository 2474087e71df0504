// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a sentence with values. Out: an Error that main() prints as one line.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "conclave/error.hpp"

namespace conclave::cli {

template <class... Args>
[[noreturn]] void bad_input(fmt::format_string<Args...> text, Args&&... args) {
  throw Error(ErrorKind::invalid_argument, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace conclave::cli
