// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Linux: /proc/meminfo, cgroup v2, and sysconf.
#include "memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace conclave::cli {
namespace {

std::int64_t meminfo_available() {
  std::ifstream in("/proc/meminfo");
  std::string field, unit;
  std::int64_t kibibytes = 0;
  while (in >> field >> kibibytes && std::getline(in, unit))
    if (field == "MemAvailable:") return kibibytes * 1024;
  return 0;
}

/// 0 if the file is missing or says "max".
std::int64_t number_in(const char* path) {
  std::ifstream in(path);
  std::int64_t value = 0;
  return in >> value ? value : 0;
}

}  // namespace

std::int64_t available_memory() {
  const std::int64_t machine = meminfo_available();
  const std::int64_t limit = number_in("/sys/fs/cgroup/memory.max");
  if (limit == 0) return machine;
  const std::int64_t left = std::max<std::int64_t>(0, limit - number_in("/sys/fs/cgroup/memory.current"));
  return machine == 0 ? left : std::min(machine, left);
}

std::int64_t last_cache_bytes() {
#ifdef _SC_LEVEL3_CACHE_SIZE
  for (const int level : {_SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE})
    if (const long bytes = sysconf(level); bytes > 0) return bytes;
#endif
  return 0;
}

}  // namespace conclave::cli
