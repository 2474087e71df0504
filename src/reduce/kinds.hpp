// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One immutable object for each WeightAndReduceKind, each in the file of its name.
#pragma once

#include "conclave/reduce.hpp"

namespace conclave::reduce {

const WeightAndReduce& delegate();
const WeightAndReduce& no_op();
const WeightAndReduce& contiguous();
const WeightAndReduce& naive_batched();

}  // namespace conclave::reduce
