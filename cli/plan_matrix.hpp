// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a registry. Out: docs/matrix.md: what each part takes and what selection chooses, asked of the parts themselves,
// on a CPU that has every instruction set. The same on every machine.
#pragma once

#include <string>

#include "conclave/registry.hpp"

namespace conclave::cli {

std::string support_matrix(const Registry& registry);

}  // namespace conclave::cli
