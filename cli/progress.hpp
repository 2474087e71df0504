// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: what is being done now. Out: one line on stderr, rewritten in place, only if stderr is a terminal.
#pragma once

#include <string>

namespace conclave::cli {

class Progress {
 public:
  Progress();
  /// Clears the line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void show(const std::string& text);

 private:
  bool terminal_;
};

}  // namespace conclave::cli
