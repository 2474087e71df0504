// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Mistakes that kernels have really made, as changes to the problem that a part is given while the oracle keeps the
// original: proof that the comparison can fail. A mutation counts only where the right answer itself moves by far more
// than the tolerance.
#pragma once

#include <span>
#include <string_view>

#include "verify/problem.hpp"

namespace conclave::verify_detail {

struct Mutation {
  std::string_view name;
  /// Changes a deep copy of the problem. False: this problem has nothing to get wrong in this way.
  bool (*apply)(ProblemData& data);
  /// False: the mistake is in ids or weights, which monolithic kernels do not take.
  bool for_monolithic = true;
};
std::span<const Mutation> mutations() noexcept;
/// Those of codes and scales: they apply to quantised problems only.
std::span<const Mutation> quant_mutations() noexcept;

}  // namespace conclave::verify_detail
