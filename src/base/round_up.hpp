// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a count and a unit, both non-negative and the unit positive. Out: the next multiple of the unit.
#pragma once

#include <cstdint>

namespace conclave {

constexpr std::int64_t round_up(std::int64_t count, std::int64_t unit) noexcept {
  return (count + unit - 1) / unit * unit;
}

}  // namespace conclave
