// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: an engine. Out: its registry entry: the experts that run it, and what it refuses.
#pragma once

#include "conclave/registry.hpp"
#include "experts/cpu/engine.hpp"

namespace conclave::experts::grouped {

/// `engine` must live as long as the entry and everything made from it: engines are constants.
Entry<Experts> entry_of(const Engine& engine);

}  // namespace conclave::experts::grouped
