// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What the routers of this folder refuse. They share the rule, so they share the refusals.
#pragma once

#include "conclave/config.hpp"
#include "conclave/support.hpp"

namespace conclave::router {

Support supports_rule_on(const Problem& problem, DeviceType device);
/// On the CPU.
Support supports_rule(const Problem& problem);

}  // namespace conclave::router
