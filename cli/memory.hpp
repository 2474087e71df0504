// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// How much memory this process can still take, and how large the caches are: 0 where the system does not say.
#pragma once

#include <cstdint>

namespace conclave::cli {

/// The smaller of the machine's and the control group's.
std::int64_t available_memory();
/// The last-level cache that one core sees.
std::int64_t last_cache_bytes();

}  // namespace conclave::cli
