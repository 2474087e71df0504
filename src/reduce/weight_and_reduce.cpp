// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a kind. Out: the object that implements it.
#include "base/error.hpp"
#include "reduce/kinds.hpp"

namespace conclave {

const WeightAndReduce& weight_and_reduce(WeightAndReduceKind kind) {
  switch (kind) {
    case WeightAndReduceKind::delegate:
      return reduce::delegate();
    case WeightAndReduceKind::no_op:
      return reduce::no_op();
    case WeightAndReduceKind::contiguous:
      return reduce::contiguous();
    case WeightAndReduceKind::naive_batched:
      return reduce::naive_batched();
  }
  fail(ErrorKind::invalid_argument, "weight and reduce: given kind {}, expected one of the four",
       static_cast<int>(kind));
}

}  // namespace conclave
