// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What the processor and the system under this process can do. Asked at run time: the build knows only what the
// compiler could emit.
#pragma once

#include <cstdint>
#include <string>

#include "conclave/config.hpp"

namespace conclave::cpu {

/// Asks the processor and the kernel, each time. AMX needs a grant from the kernel, which this requests.
CpuFeatures detect_features() noexcept;

/// detect_features() of the first call.
const CpuFeatures& features() noexcept;

/// The processor's own name for itself, or "unknown CPU".
std::string brand_name();

/// CPUs that this process may run on: its affinity mask, not the machine.
int available_cpus() noexcept;

/// Bytes of the cache of `level` (1 is the data cache) that one core sees; 0 if the system does not say.
std::int64_t cache_bytes(int level) noexcept;

}  // namespace conclave::cpu
