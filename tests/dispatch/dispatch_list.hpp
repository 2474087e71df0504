// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the name of a prepare/finalize part and a problem. Out: the part.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "conclave/registry.hpp"
#include "support/tensors.hpp"

namespace conclave {

std::vector<Entry<PrepareFinalize>> builtin_dispatch();

namespace test {

inline Entry<PrepareFinalize> dispatch_entry(const std::string& name) {
  for (const auto& entry : builtin_dispatch())
    if (entry.name == name) return entry;
  throw std::logic_error("no part " + name);
}

template <class Kind>
std::unique_ptr<Kind> make_dispatch(const std::string& name, const Problem& problem) {
  std::unique_ptr<PrepareFinalize> part = dispatch_entry(name).make({problem, nullptr});
  return std::unique_ptr<Kind>(dynamic_cast<Kind*>(part.release()));
}

}  // namespace test
}  // namespace conclave
