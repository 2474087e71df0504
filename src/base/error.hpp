// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a condition and a sentence with values. Out: an Error. The one place where messages are formatted and thrown.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "conclave/error.hpp"

namespace conclave {

template <class... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(kind, fmt::format(text, std::forward<Args>(args)...));
}

/// Throws Error(invalid_argument) unless `condition` holds. The text is formatted only on failure.
template <class... Args>
void require(bool condition, fmt::format_string<Args...> text, Args&&... args) {
  if (!condition) [[unlikely]]
    fail(ErrorKind::invalid_argument, text, std::forward<Args>(args)...);
}

}  // namespace conclave
