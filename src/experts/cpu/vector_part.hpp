// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// An `Element` (registers, element types, how one instruction multiplies them) -> an Engine, for the units that work on
// whole vectors. AMX brings its own kernel instead (bf16_amx.cpp).
//
// An element derives from its registers (simd_<isa>.hpp) and has
//   Source, Weight, Input           how activations, packed weights and packed rows are stored
//   kWeightGroup, kSteps            values of k side by side in a panel, and instructions that they take
//   kBlock                          values of k that a block of a panel holds: 16 or 32 KiB, from L1 or L2
//   input, weight<Step>, product    operands from memory, and the instruction
//   load_source, store_source, store_input
#pragma once

#include "experts/cpu/any_source.hpp"
#include "experts/cpu/engine.hpp"
#include "experts/cpu/epilogues.hpp"
#include "experts/cpu/vector_kernel.hpp"

namespace conclave::experts::grouped {
namespace {

template <class Element>
struct VectorPart : Element {
  using Simd = Element;
  using Kernel = VectorKernel<Element>;
  static constexpr std::int64_t kRowTile = Kernel::kRowTile;
  static constexpr std::int64_t kRowQuantum = 1;
  static constexpr std::int64_t kStep = Kernel::kWeightGroup;
  /// 96 or 192 rows: a block of k of them takes 100 to 400 KiB of L2, and weights are read again for each block.
  static constexpr std::int64_t kBlockTiles = 16;
  static constexpr std::int64_t kSumTiles = kSumTilesOf<Element>;
};

/// What a part is called, and on what it runs.
struct Label {
  const char* name;
  const char* unit;
  bool CpuFeatures::*feature;
  const char* feature_name;
  DType dtype;
  bool CpuFeatures::*slow = nullptr;
};

/// A list of one, with an address that lives as long as the engine.
template <DType Type>
inline constexpr DType kOnly[] = {Type};
constexpr std::span<const DType> only(DType dtype) {
  if (dtype == DType::f32) return kOnly<DType::f32>;
  return dtype == DType::bf16 ? std::span<const DType>(kOnly<DType::bf16>) : kOnly<DType::f16>;
}

template <class Part>
constexpr Engine make_engine(Label label) {
  using Kernel = typename Part::Kernel;
  return Engine{
      .name = label.name,
      .unit = label.unit,
      .feature = label.feature,
      .feature_name = label.feature_name,
      .slow = label.slow,
      .dtypes = only(label.dtype),
      .weight_dtype = label.dtype,
      .widens_weights = sizeof(typename Kernel::Weight) == 4,
      .scaled = nullptr,
      .integers = nullptr,
      .packs_whole_rows = false,
      .row_tile = Part::kRowTile,
      .row_quantum = Part::kRowQuantum,
      .block_tiles = Part::kBlockTiles,
      .sum_tiles = Part::kSumTiles,
      .panel_columns = Kernel::kPanel,
      .weight_group = Kernel::kWeightGroup,
      .k_step = Part::kStep,
      .k_block = Part::kBlock,
      .input_bytes = sizeof(typename Kernel::Input),
      .pack_rows = &RowOps<Part>::pack_rows,
      .first_product = &Epilogues<Part>::first_product,
      .second_product = &Epilogues<Part>::second_product,
      .combine = &combine_to_f32_or<Part>,
  };
}

}  // namespace
}  // namespace conclave::experts::grouped
