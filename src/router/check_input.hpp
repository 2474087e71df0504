// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The contract of Router::route(), checked before anything is written.
#pragma once

#include "conclave/router.hpp"
#include "router/rule.hpp"

namespace conclave::router {

/// Throws Error naming the argument, what it is and what was expected. Every tensor must be on the stream's device.
void check_input(const Rule& rule, const RouterInput& input, const Routing& out, const Stream& stream,
                 DeviceType device = DeviceType::cpu);

}  // namespace conclave::router
