// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Do all ranks compute the same layer? Asked once, when the layer is built: later a difference would be a hang, or rows
// cut at the wrong places.
#pragma once

#include <string>
#include <vector>

#include "conclave/comm.hpp"
#include "conclave/plan.hpp"

namespace conclave {

struct NamedValue {
  std::string name;
  std::string value;
};

/// Every field that must be the same on all ranks, with its value. Ranks, devices and the sizes that tensor parallelism
/// cuts are not among them.
std::vector<NamedValue> shared_fields(const Plan& plan);

/// Throws the same Error on every rank, naming each field that differs, its values and whose they are.
void require_agreement(Communicator& communicator, const Plan& plan);

}  // namespace conclave
