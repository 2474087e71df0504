// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The version numbers of version.hpp as the string that version() returns.
#include "conclave/version.hpp"

#define CONCLAVE_STRING(x) #x
#define CONCLAVE_VERSION_TEXT(a, b, c) CONCLAVE_STRING(a) "." CONCLAVE_STRING(b) "." CONCLAVE_STRING(c)

namespace conclave {

const char* version() noexcept {
  return CONCLAVE_VERSION_TEXT(CONCLAVE_VERSION_MAJOR, CONCLAVE_VERSION_MINOR, CONCLAVE_VERSION_PATCH);
}

}  // namespace conclave
