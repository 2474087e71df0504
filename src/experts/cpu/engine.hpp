// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// What one instruction set and dtype bring to the grouped product: the shape of their layout and five functions. The
// rest (routing, packing, scheduling) is compiled once, for every CPU, and knows nothing else about them.
//
// Layouts, with G values of k side by side where the unit multiplies pairs:
//   weights  panels of `panel_columns` columns, [k / weight_group][column][weight_group]; a gated w13 has the gate
//            columns in the first half of a panel and the up columns of the same indices in the second. Quantised
//            weights keep their codes; ScaledFormat has their layout
//   inputs   row tiles (row_tiles.hpp), [k / G][row][G]
// k is padded to k_step with zeros in both, so that no kernel has a tail in k. Rows that only pad a tile (AMX) hold
// whatever memory held: no row of a product depends on another, and theirs are not stored.
#pragma once

#include <cstdint>
#include <span>

#include "conclave/config.hpp"
#include "experts/activation.hpp"

namespace conclave::experts::grouped {

/// Some rows of one expert times some panels of one of its matrices.
struct ProductTask {
  const void* inputs;       ///< The expert's packed rows, from its first.
  const void* panels;       ///< The first panel of the task.
  const void* next;         ///< Panels that the thread will need after this task, to be fetched meanwhile; null: none.
  const float* bias;        ///< [num_panels][panel_columns] in the order of the panel's columns; null: none.
  const float* row_scales;  ///< Of the expert's rows, from its first. Integers only, like the next two.
  const float* column_scales;       ///< [num_panels][panel_columns]
  const std::int32_t* column_sums;  ///< [num_panels][panel_columns]: of the column's codes
  std::int64_t k;                   ///< Padded.
  std::int64_t num_panels;
  std::int64_t rows;  ///< Of the expert, not of the task.
  std::int64_t tile_begin, tile_end;
};

/// What becomes of the first product: the activation, packed as the input of the second.
struct ActivationTarget {
  const ActivationFn* fn;
  /// For the activations that a kernel has no vector form of. `up` is ignored where there is no gate.
  float (*scalar)(const ActivationFn& fn, float gate, float up);
  void* to;                        ///< The expert's rows of the second product's input; or f32 rows (packs_whole_rows).
  std::int64_t first_panel;        ///< Index of the task's first panel in the matrix.
  std::int64_t intermediate_size;  ///< Columns from here on are stored as zeros,
  std::int64_t padded_intermediate;  ///< and from here on not at all.
};

/// What becomes of the second product: f32 rows, one for each (token, pick).
struct RowTarget {
  float* rows;
  std::int64_t row_stride;
  const std::int32_t* pairs;  ///< The row of `rows` for each row of the expert.
  std::int64_t first_column;  ///< Of the task's first panel.
  std::int64_t num_columns;   ///< Of the matrix.
};

/// One tile of tokens' hidden states -> the layout of inputs.
struct PackRowsTask {
  const void* hidden_states;
  DType dtype;                ///< Of the hidden states.
  std::int64_t row_stride;    ///< In elements.
  const std::int32_t* pairs;  ///< token * top_k + pick, for each valid row; null: row r is row r of hidden_states.
  std::int64_t top_k;
  std::int64_t valid_rows, padded_rows;
  std::int64_t num_columns, k;
  void* to;
  float* scales;  ///< [valid_rows] of the codes that the rows become. Integers only.
};

/// Rows of one token -> some columns of its output.
struct CombineTask {
  const float* rows;  ///< [top_k] rows of the token, from the task's first column.
  std::int64_t row_stride;
  const std::uint8_t* present;  ///< [top_k]: 0 where there is no row.
  const float* weights;         ///< [top_k]
  std::int64_t top_k;
  std::int64_t num_columns;
  void* to;
  DType dtype;  ///< Of the output.
};

/// Each is what its instruction set takes apart with the fewest operations.
enum class CodeOrder {
  quads,   ///< For every four k (8 bits) or eight: [column][4] bytes; of 4 bits, k + i in the low half of byte i and
           ///< k + 4 + i in the other.
  octets,  ///< 4 bits: for every eight k: [column][4] bytes, with k + 2i in the low half of byte i and k + 2i + 1 in
           ///< the other.
  pairs,   ///< 8 bits: for every four k and each half of the columns: [column][k, k + 1], then [column][k + 2, k + 3].
};

/// Panels of codes that are decoded in registers. k is cut into groups, and a group into parts of `scale_group` values:
///   [f32 global scale of each column]                     where the format has one
///   scale_group by scale_group: [scale of each column] [zero point of each column, u8, where there are some]
///     then codes, in the order of CodeOrder
/// Scales are f32, e8m0 or e4m3 as in the checkpoint: where groups are small, widening them would be a fifth of all
/// bytes. A weight is code * scale and is never rounded otherwise.
struct ScaledFormat {
  std::span<const QuantKey> keys;  ///< What is packed into it: keys of coarser groups repeat their scales.
  int bits;
  std::int64_t group, scale_group;
  DType scale;
  bool has_global_scale, has_zero_points;
  CodeOrder order;

  constexpr std::int64_t part_bytes(std::int64_t columns) const noexcept {
    const std::int64_t scale_bytes = scale == DType::f32 ? 4 : 1;
    return columns * (scale_bytes + (has_zero_points ? 1 : 0) + scale_group * bits / 8);
  }
  constexpr std::int64_t group_bytes(std::int64_t columns) const noexcept {
    return (has_global_scale ? columns * 4 : 0) + group / scale_group * part_bytes(columns);
  }
};

/// Rows of int8 codes times weights of int8 codes, summed exactly in int32 and then multiplied by one scale of the row
/// and one of the column.
struct IntegerFormat {
  std::span<const QuantKey> weights;
  QuantKey activations;
  std::int64_t max_k;  ///< Above it a sum may not fit.
};

struct Engine {
  const char* name;  ///< As registered.
  const char* unit;  ///< For reports: the instruction set and what it multiplies.
  bool CpuFeatures::*feature;
  const char* feature_name;
  bool CpuFeatures::*slow;        ///< Set where an engine further down the list is faster; null: nowhere.
  std::span<const DType> dtypes;  ///< Of activations, in and out.
  DType weight_dtype;             ///< Of the packed weights; u8 for codes.
  bool widens_weights;            ///< Accepts bf16 and f16 weights, converted when packed.
  const ScaledFormat* scaled;     ///< Null: weights are not decoded in registers.
  const IntegerFormat* integers;  ///< Null: products of floats.
  bool packs_whole_rows;          ///< The activation waits as f32 rows: pack_rows() needs whole ones.
  std::int64_t row_tile, row_quantum;
  std::int64_t block_tiles;  ///< Row tiles of one task; what they need stays in the L2 cache.
  std::int64_t sum_tiles;    ///< Register tiles (row tiles x panels) whose sums one blocked task keeps on the stack.
  std::int64_t panel_columns;
  std::int64_t weight_group;
  std::int64_t k_step, k_block;
  std::int64_t input_bytes;  ///< Of one element of the packed inputs.

  void (*pack_rows)(const PackRowsTask& task);
  void (*first_product)(const ProductTask& task, const ActivationTarget& target);
  void (*second_product)(const ProductTask& task, const RowTarget& target);
  void (*combine)(const CombineTask& task);
};

}  // namespace conclave::experts::grouped
