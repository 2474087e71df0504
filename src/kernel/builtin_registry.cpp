// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The lists of the stages (generated from their CMakeLists.txt) -> one Registry.
#include "conclave/registry.hpp"

namespace conclave {

std::vector<Entry<Router>> builtin_router();
std::vector<Entry<PrepareFinalize>> builtin_dispatch();
std::vector<Entry<Experts>> builtin_experts();

namespace {

template <class Part>
PartList<Part> list_of(std::vector<Entry<Part>> entries) {
  PartList<Part> list;
  for (Entry<Part>& entry : entries) list.add_last(std::move(entry));
  return list;
}

}  // namespace

Registry builtin_registry() {
  return {list_of(builtin_router()), list_of(builtin_dispatch()), list_of(builtin_experts())};
}

}  // namespace conclave
