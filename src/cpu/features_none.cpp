// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Out: no vector unit that this library has code for. Every processor but x86-64.
#include "cpu/features.hpp"

namespace conclave::cpu {

CpuFeatures detect_features() noexcept {
  return {};
}

std::string brand_name() {
  return "unknown CPU";
}

}  // namespace conclave::cpu
