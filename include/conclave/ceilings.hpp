// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What this machine can do at most, measured: the denominators of every "fraction of the limit".
#pragma once

#include "conclave/config.hpp"
#include "conclave/stream.hpp"

namespace conclave {

struct CpuCeilings {
  double read_bytes_per_second = 0;  ///< All threads streaming over memory far larger than the caches.
  double f32_flops = 0;              ///< Dependent-free FMA in registers on all threads, widest unit.
  double bf16_flops = 0;             ///< The fastest bf16 product unit; equals f32_flops where there is none.
  double f16_flops = 0;
};

/// About three seconds. Best of many rounds: other processes can only slow it down.
CpuCeilings measure_cpu_ceilings(Executor& executor);

}  // namespace conclave
