// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A plan, complete or not -> text for a person.
#pragma once

#include <string>
#include <vector>

#include "conclave/kernel.hpp"
#include "conclave/plan.hpp"

namespace conclave {

/// "nothing fits" with every candidate and its reason.
std::string refusal_report(const Plan& plan);

/// Who applies the router weight, the factor, biases, the shared expert, zero experts and the sum over ranks.
std::vector<std::string> owners_of(const Plan& plan, const FusedMoeKernel& kernel);

/// One line that says what the problem is.
std::string summary_of(const Problem& problem);

}  // namespace conclave
