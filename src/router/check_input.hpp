// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The contract of Router::route(), checked before anything is written.
#pragma once

#include "conclave/router.hpp"
#include "router/rule.hpp"

namespace conclave::router {

/// Throws Error naming the argument, what it is and what was expected.
void check_input(const Rule& rule, const RouterInput& input, const Routing& out, const Stream& stream);

}  // namespace conclave::router
