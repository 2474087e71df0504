// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The version of the library. CMake reads these three numbers; nothing else repeats them.
#pragma once

#define CONCLAVE_VERSION_MAJOR 0
#define CONCLAVE_VERSION_MINOR 1
#define CONCLAVE_VERSION_PATCH 0

namespace conclave {

/// "MAJOR.MINOR.PATCH" of the library that is linked (not of the headers that were compiled).
const char* version() noexcept;

}  // namespace conclave
