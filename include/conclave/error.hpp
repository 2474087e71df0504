// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Misuse and bad input throw Error, with the offending values in the message. "I cannot do this" is a Support
// value (support.hpp), never an exception.
#pragma once

#include <stdexcept>
#include <string>

namespace conclave {

/// Why a call failed, coarse enough for a status code of the C API.
enum class ErrorKind {
  invalid_argument,  ///< A value breaks a documented contract.
  bad_file,          ///< A file is malformed, truncated, or lacks something.
  unsupported,       ///< No registered part can do it; the message is the plan report.
  out_of_memory,     ///< A workspace is locked or an allocation failed.
  io,                ///< The operating system refused a read or a write.
  communication,     ///< Another rank failed, left, did something else, or did not answer in time.
};

/// The only exception type that the library throws on purpose. what() is one line unless kind() is unsupported.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace conclave
