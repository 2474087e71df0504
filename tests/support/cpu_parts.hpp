// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The parts of a list that run on the CPU: what a test that has no GPU can run. A build with the CUDA back end lists
// its parts too.
#pragma once

#include <vector>

#include "conclave/registry.hpp"

namespace conclave::test {

template <class Part>
std::vector<Entry<Part>> cpu_parts(std::vector<Entry<Part>> parts) {
  std::erase_if(parts, [](const Entry<Part>& entry) { return entry.name.find("/cuda_") != std::string::npos; });
  return parts;
}

}  // namespace conclave::test
