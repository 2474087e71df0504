// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The status line: carriage return, erase to the end of the line, text.
#include "progress.hpp"

#include <unistd.h>

#include <cstdio>

namespace conclave::cli {

Progress::Progress() : terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (terminal_) std::fputs("\r\x1b[K", stderr);
}

void Progress::show(const std::string& text) {
  // 79 columns: a line that wraps could not be rewritten.
  if (terminal_) std::fprintf(stderr, "\r\x1b[K%.79s", text.c_str());
}

}  // namespace conclave::cli
