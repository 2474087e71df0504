// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Codes (an element of digits_<isa>.hpp) -> an Engine that takes activations of any type and multiplies them as digits.
#pragma once

#include "experts/cpu/digit_kernel.hpp"
#include "experts/cpu/scaled_part.hpp"

namespace conclave::experts::grouped {
namespace {

template <class Element>
struct DigitPart : Element {
  using Simd = Element;
  using Kernel = DigitKernel<Element>;
  static constexpr std::int64_t kRowTile = Kernel::kRowTile;
  static constexpr std::int64_t kRowQuantum = 1;
  static constexpr std::int64_t kStep = Kernel::kWeightGroup;
  /// 4 to 5 KiB of a panel and 8 KiB of a row tile in L1, 128 KiB of rows in L2.
  static constexpr std::int64_t kBlock = 512;
  static constexpr std::int64_t kBlockTiles = 16;
  static constexpr std::int64_t kSumTiles = kSumTilesOf<Element>;
  static constexpr bool kPacksWholeRows = true;
  static_assert(kBlock % Kernel::kFormat.group == 0);

  static void store_input(float* p, typename Element::Vec v) { Element::store(p, v); }
};

template <class Part>
void pack_digits_of_any_type(const PackRowsTask& task) {
  with_source<Part>(task.dtype, [&]<class Sourced>() { DigitRows<Sourced>::pack_rows(task); });
}

template <class Element>
constexpr Engine make_digit_engine(CodesLabel label) {
  using Part = DigitPart<Element>;
  return make_codes_engine<Part>(label, &pack_digits_of_any_type<Part>, true);
}

}  // namespace
}  // namespace conclave::experts::grouped
