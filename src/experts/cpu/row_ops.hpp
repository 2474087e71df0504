// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The two ends of the experts: tokens' hidden states -> packed rows of their experts, and rows of the second product ->
// the weighted sum over a token's picks, in the order of the picks, rounded once.
#pragma once

#include <cstdint>
#include <type_traits>

#include "experts/cpu/engine.hpp"

namespace conclave::experts::grouped {
namespace {

template <class Part>
struct RowOps {
  using Simd = typename Part::Simd;
  using Vec = typename Simd::Vec;
  using Source = typename Part::Source;
  using Input = typename Part::Kernel::Input;
  static constexpr std::int64_t kLanes = Simd::kLanes;
  static constexpr std::int64_t kGroup = Part::Kernel::kInputGroup;

  static const Source* row(const PackRowsTask& task, std::int64_t r) {
    const std::int64_t token = task.pairs == nullptr ? r : task.pairs[r] / task.top_k;
    return static_cast<const Source*>(task.hidden_states) + token * task.row_stride;
  }

  /// Reads `count` < kLanes elements and not one more.
  static Vec load_some(const Source* from, std::int64_t count) {
    alignas(64) Source lanes[kLanes] = {};
    for (std::int64_t j = 0; j < count; ++j) lanes[j] = from[j];
    return Part::load_source(lanes);
  }

  /// Converted to f32, as store_input() has it. kLanes columns of all rows at a time, so that both the reads and the
  /// interleaved writes stay within a few cache lines.
  static void pack_converted(const PackRowsTask& task) {
    auto* to = static_cast<Input*>(task.to);
    for (std::int64_t k = 0; k < task.k; k += kLanes) {
      alignas(64) float lanes[Part::kRowTile][kLanes];
      const std::int64_t left = task.num_columns - k;
      for (std::int64_t r = 0; r < task.valid_rows; ++r) {
        const Source* from = row(task, r) + k;
        Part::store_input(lanes[r], left >= kLanes ? Part::load_source(from) : load_some(from, left));
      }
      for (std::int64_t j = 0; j < kLanes && k + j < task.k; ++j)
        for (std::int64_t r = 0; r < task.valid_rows; ++r) to[(k + j) * task.padded_rows + r] = lanes[r][j];
    }
  }

  /// As they are, kGroup neighbours at a time. Columns that only pad are zeros; rows that only pad stay what they are,
  /// because no row of a product depends on another.
  static void pack_copied(const PackRowsTask& task) {
    auto* to = static_cast<Input*>(task.to);
    for (std::int64_t r = 0; r < task.valid_rows; ++r) {
      const std::int64_t columns = task.num_columns;
      const Source* from = row(task, r);
      for (std::int64_t k = 0; k < task.k; k += kGroup) {
        Input* group = to + k * task.padded_rows + r * kGroup;
        if (k + kGroup <= columns) {
          __builtin_memcpy(group, from + k, kGroup * sizeof(Input));
        } else {
          for (std::int64_t j = 0; j < kGroup; ++j) group[j] = k + j < columns ? from[k + j] : Input{0};
        }
      }
    }
  }

  static void pack_rows(const PackRowsTask& task) {
    if constexpr (std::is_same_v<Input, float>) {
      static_assert(kGroup == 1 && Part::kRowQuantum == 1);
      pack_converted(task);
    } else {
      static_assert(std::is_same_v<Input, Source>);
      pack_copied(task);
    }
  }

  /// The sum of `Vectors` registers of columns over the picks that have a row.
  template <int Vectors>
  static void weighted_sum(const CombineTask& task, std::int64_t column, Vec (&sum)[Vectors]) {
    for (int v = 0; v < Vectors; ++v) sum[v] = Simd::set(0.0f);
    for (std::int64_t s = 0; s < task.top_k; ++s) {
      if (task.present[s] == 0) continue;
      const float* from = task.rows + s * task.row_stride + column;
      const Vec weight = Simd::set(task.weights[s]);
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) sum[v] = Simd::multiply_add(weight, Simd::load(from + v * kLanes), sum[v]);
    }
  }

  static void combine(const CombineTask& task) {
    auto* to = static_cast<Source*>(task.to);
    std::int64_t c = 0;
    for (; c + 4 * kLanes <= task.num_columns; c += 4 * kLanes) {
      Vec sum[4];
      weighted_sum(task, c, sum);
      for (int v = 0; v < 4; ++v) Part::store_source(to + c + v * kLanes, sum[v]);
    }
    // Rows are padded to whole registers (row_stride), so only the store has a tail.
    for (; c < task.num_columns; c += kLanes) {
      Vec sum[1];
      weighted_sum(task, c, sum);
      alignas(64) Source lanes[kLanes];
      Part::store_source(lanes, sum[0]);
      for (std::int64_t j = 0; j < kLanes && c + j < task.num_columns; ++j) to[c + j] = lanes[j];
    }
  }
};

}  // namespace
}  // namespace conclave::experts::grouped
