// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Codes (scaled_elements.hpp) -> an Engine that takes activations of any type and computes in f32.
#pragma once

#include "experts/cpu/epilogues.hpp"
#include "experts/cpu/row_ops.hpp"
#include "experts/cpu/scaled_elements.hpp"
#include "experts/cpu/scaled_kernel.hpp"

namespace conclave::experts::grouped {
namespace {

template <class Element>
struct ScaledPart : Element {
  using Simd = Element;
  using Kernel = ScaledKernel<Element>;
  static constexpr std::int64_t kRowTile = Kernel::kRowTile;
  static constexpr std::int64_t kRowQuantum = 1;
  static constexpr std::int64_t kStep = Kernel::kWeightGroup;
  /// 8 or 16 KiB of codes in L1, beside 12 KiB of a tile's rows: codes are small, so k may be longer than for floats.
  static constexpr std::int64_t kBlock = 512;
  static constexpr std::int64_t kBlockTiles = 16;
  static constexpr std::int64_t kSumTiles = kSumTilesOf<Element>;
  static_assert(kBlock % Kernel::kFormat.group == 0);

  static void store_input(float* p, typename Element::Vec v) { Element::store(p, v); }
};

/// The rows' two ends for one type of activations.
template <class Element, DType Type>
struct WithSource : ScaledPart<Element> {
  using Vec = typename Element::Vec;
  using Source = std::conditional_t<Type == DType::f32, float, std::uint16_t>;

  static Vec load_source(const Source* p) {
    if constexpr (Type == DType::f32) return Element::load(p);
    if constexpr (Type == DType::bf16) return Element::load_bf16(p);
    if constexpr (Type == DType::f16) return Element::load_f16(p);
  }
  static void store_source(Source* p, Vec v) {
    if constexpr (Type == DType::f32) Element::store(p, v);
    if constexpr (Type == DType::bf16) Element::store_bf16(p, v);
    if constexpr (Type == DType::f16) Element::store_f16(p, v);
  }
};

template <class Element>
void pack_rows_of_any_type(const PackRowsTask& task) {
  if (task.dtype == DType::f32) return RowOps<WithSource<Element, DType::f32>>::pack_rows(task);
  if (task.dtype == DType::bf16) return RowOps<WithSource<Element, DType::bf16>>::pack_rows(task);
  RowOps<WithSource<Element, DType::f16>>::pack_rows(task);
}

template <class Element>
void combine_to_any_type(const CombineTask& task) {
  if (task.dtype == DType::f32) return RowOps<WithSource<Element, DType::f32>>::combine(task);
  if (task.dtype == DType::bf16) return RowOps<WithSource<Element, DType::bf16>>::combine(task);
  RowOps<WithSource<Element, DType::f16>>::combine(task);
}

inline constexpr DType kAnyType[] = {DType::f32, DType::bf16, DType::f16};

/// What a part is called, and on what it runs.
struct ScaledLabel {
  const char* name;
  const char* unit;
  bool CpuFeatures::*feature;
  const char* feature_name;
};

template <class Element>
constexpr Engine make_scaled_engine(ScaledLabel label) {
  using Part = ScaledPart<Element>;
  using Kernel = typename Part::Kernel;
  return Engine{
      .name = label.name,
      .unit = label.unit,
      .feature = label.feature,
      .feature_name = label.feature_name,
      .dtypes = kAnyType,
      .weight_dtype = DType::u8,
      .widens_weights = false,
      .scaled = &Kernel::kFormat,
      .row_tile = Part::kRowTile,
      .row_quantum = Part::kRowQuantum,
      .block_tiles = Part::kBlockTiles,
      .sum_tiles = Part::kSumTiles,
      .panel_columns = Kernel::kPanel,
      .weight_group = Kernel::kWeightGroup,
      .k_step = Kernel::kFormat.group,
      .k_block = Part::kBlock,
      .input_bytes = sizeof(float),
      .pack_rows = &pack_rows_of_any_type<Element>,
      .first_product = &Epilogues<Part>::first_product,
      .second_product = &Epilogues<Part>::second_product,
      .combine = &combine_to_any_type<Element>,
  };
}

}  // namespace
}  // namespace conclave::experts::grouped
