// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: something to call. Out: the text of the error that it throws, or "no error".
#pragma once

#include <string>
#include <utility>

#include "conclave/error.hpp"

namespace conclave::test {

template <class F>
std::string message_of(F&& f) {
  try {
    std::forward<F>(f)();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace conclave::test
