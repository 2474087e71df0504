// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The kind with which experts leave the choice to finalize. It has nothing to compute, so being asked to is a mistake
// of the finalize that asks.
#include "base/error.hpp"
#include "reduce/kinds.hpp"

namespace conclave::reduce {
namespace {

class Delegate final : public WeightAndReduce {
 public:
  WeightAndReduceKind kind() const noexcept override { return WeightAndReduceKind::delegate; }
  void apply(const ReduceInput& input, const TensorView& /*output*/, Stream /*stream*/) const override {
    fail(ErrorKind::invalid_argument,
         "delegate: apply() called with rows {}, expected finalize to choose another kind for them",
         to_string(input.rows));
  }
};

}  // namespace

const WeightAndReduce& delegate() {
  static const Delegate object;
  return object;
}

}  // namespace conclave::reduce
