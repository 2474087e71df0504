// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: what the system reports. Out: DeviceFacts, affinity and cache sizes; the part that is the same on every
// processor.
#include "cpu/features.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "base/error.hpp"

namespace conclave {
namespace cpu {

const CpuFeatures& features() noexcept {
  static const CpuFeatures detected = detect_features();
  return detected;
}

int available_cpus() noexcept {
  // The mask of the system may be wider than cpu_set_t (1024 bits): grow until the kernel accepts the size.
  for (int bits = 1024; bits <= (1 << 20); bits *= 4) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(static_cast<std::size_t>(bits)),
                                                               [](cpu_set_t* p) { CPU_FREE(p); });
    if (!set) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(bits));
    if (sched_getaffinity(0, bytes, set.get()) == 0) return std::max(1, CPU_COUNT_S(bytes, set.get()));
  }
  return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

std::int64_t cache_bytes(int level) noexcept {
  const int name = level == 1   ? _SC_LEVEL1_DCACHE_SIZE
                   : level == 2 ? _SC_LEVEL2_CACHE_SIZE
                   : level == 3 ? _SC_LEVEL3_CACHE_SIZE
                                : -1;
  return name < 0 ? 0 : std::max(0L, sysconf(name));
}

}  // namespace cpu

DeviceFacts cpu_facts(int num_threads) {
  require(num_threads >= 1, "cpu_facts: num_threads: given {}, expected at least 1", num_threads);
  DeviceFacts facts;
  facts.name = cpu::brand_name();
  facts.num_threads = num_threads;
  facts.cpu = cpu::features();
  const std::int64_t l2 = cpu::cache_bytes(2);
  if (l2 > 0) facts.l2_bytes = l2;
  return facts;
}

}  // namespace conclave
