// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Codes (an element of codes_<isa>.hpp) -> an Engine that takes activations of any type and computes in f32.
#pragma once

#include "experts/cpu/any_source.hpp"
#include "experts/cpu/epilogues.hpp"
#include "experts/cpu/group_sum_kernel.hpp"

namespace conclave::experts::grouped {
namespace {

template <class Element>
struct ScaledPart : Element {
  using Simd = Element;
  using Kernel = GroupSumKernel<Element>;
  static constexpr std::int64_t kRowTile = Kernel::kRowTile;
  static constexpr std::int64_t kRowQuantum = 1;
  static constexpr std::int64_t kStep = Kernel::kWeightGroup;
  /// 32 or 64 KiB decoded, from L2.
  static constexpr std::int64_t kBlock = 512;
  static constexpr std::int64_t kBlockTiles = 16;
  static constexpr std::int64_t kSumTiles = kSumTilesOf<Element>;
  static_assert(kBlock % Kernel::kFormat.group == 0);

  static void store_input(float* p, typename Element::Vec v) {
    Element::store(p, v * Element::set(Element::kInputFactor));
  }
};

template <class Part>
void pack_rows_of_any_type(const PackRowsTask& task) {
  with_source<Part>(task.dtype, [&]<class Sourced>() { RowOps<Sourced>::pack_rows(task); });
}

/// Of any part that multiplies codes of a ScaledFormat.
template <class Part>
constexpr Engine make_codes_engine(CodesLabel label, void (*pack_rows)(const PackRowsTask&), bool packs_whole_rows) {
  using Kernel = typename Part::Kernel;
  return Engine{
      .name = label.name,
      .unit = label.unit,
      .feature = label.feature,
      .feature_name = label.feature_name,
      .slow = nullptr,
      .dtypes = kAnyType,
      .weight_dtype = DType::u8,
      .widens_weights = false,
      .scaled = &Kernel::kFormat,
      .integers = nullptr,
      .packs_whole_rows = packs_whole_rows,
      .row_tile = Part::kRowTile,
      .row_quantum = Part::kRowQuantum,
      .block_tiles = Part::kBlockTiles,
      .sum_tiles = Part::kSumTiles,
      .panel_columns = Kernel::kPanel,
      .weight_group = Kernel::kWeightGroup,
      .k_step = Kernel::kFormat.group,
      .k_block = Part::kBlock,
      .input_bytes = sizeof(typename Kernel::Input),
      .pack_rows = pack_rows,
      .first_product = &Epilogues<Part>::first_product,
      .second_product = &Epilogues<Part>::second_product,
      .combine = &combine_to_any_type<Part>,
  };
}

template <class Element>
constexpr Engine make_scaled_engine(CodesLabel label) {
  using Part = ScaledPart<Element>;
  return make_codes_engine<Part>(label, &pack_rows_of_any_type<Part>, false);
}

}  // namespace
}  // namespace conclave::experts::grouped
