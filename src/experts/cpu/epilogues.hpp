// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the sums of one tile and one panel. Out: bias and activation as packed input of the second product; or bias and
// rows of the second product, f32.
#pragma once

#include <cstdint>
#include <type_traits>

#include "experts/cpu/engine.hpp"
#include "experts/cpu/product_loop.hpp"
#include "experts/cpu/row_tiles.hpp"
#include "experts/cpu/vector_math.hpp"

namespace conclave::experts::grouped {
namespace {

/// Sums are integers (integer_part.hpp): they become numbers here.
template <class Part>
concept SumsIntegers = requires {
  Part::kInputOffset;
};

/// The second product's inputs are made of whole rows (codes, digits): the activation stays numbers until then.
template <class Part>
concept PacksWholeRows = requires {
  Part::kPacksWholeRows;
};

template <class Part>
struct Epilogues {
  using Kernel = typename Part::Kernel;
  using Simd = typename Part::Simd;
  using Input = std::conditional_t<PacksWholeRows<Part>, float, typename Kernel::Input>;
  using Vec = typename Simd::Vec;
  static constexpr std::int64_t kLanes = Simd::kLanes;
  static constexpr std::int64_t kPanel = Kernel::kPanel;

  static Vec biased(const float* sums, const float* bias) {
    const Vec v = Simd::load(sums);
    return bias == nullptr ? v : v + Simd::load(bias);
  }

  static void activate_lanes(const ActivationTarget& target, Vec gate, Vec up, Input* to) {
    if (has_vector_form(target.fn->kind)) return Part::store_input(to, activate<Simd>(*target.fn, gate, up));
    alignas(64) float g[kLanes];
    alignas(64) float u[kLanes];
    Simd::store(g, gate);
    Simd::store(u, up);
    for (std::int64_t j = 0; j < kLanes; ++j) g[j] = target.scalar(*target.fn, g[j], u[j]);
    Part::store_input(to, Simd::load(g));
  }

  /// Rows that only pad a tile are never written: their sums are whatever memory held, and nobody reads them.
  /// values[row][lane] of columns [column, column + kLanes) -> the input layout of the second product. Columns that
  /// only pad are exact zeros, whatever the activation of 0 is.
  static void store_inputs(const ActivationTarget& target, const Input (&values)[Part::kRowTile][kLanes], Input* tile,
                           std::int64_t valid, std::int64_t rows, std::int64_t column) {
    constexpr std::int64_t kGroup = Kernel::kInputGroup;
    const std::int64_t left = target.padded_intermediate - column;
    for (std::int64_t j = 0; j < kLanes && j < left; ++j) {
      const std::int64_t k = column + j;
      Input* to = tile + k / kGroup * rows * kGroup + k % kGroup;
      const bool exists = k < target.intermediate_size;
      for (std::int64_t r = 0; r < valid; ++r) to[r * kGroup] = exists ? values[r][j] : Input{0};
    }
  }

  /// The same as rows: each waits for the others' columns before it can be packed.
  static void store_rows(const ActivationTarget& target, const Input (&values)[Part::kRowTile][kLanes],
                         std::int64_t first_row, std::int64_t valid, std::int64_t column) {
    const std::int64_t left = target.intermediate_size - column;
    for (std::int64_t r = 0; r < valid; ++r) {
      Input* to = static_cast<Input*>(target.to) + (first_row + r) * target.padded_intermediate + column;
      for (std::int64_t j = 0; j < kLanes && j < left; ++j) to[j] = values[r][j];
    }
  }

  static void to_numbers(const ProductTask& task, float* sums, std::int64_t first_row, std::int64_t valid,
                         std::int64_t p) {
    if constexpr (SumsIntegers<Part>)
      Part::to_numbers(sums, valid, task.row_scales + first_row, task.column_scales + p * kPanel,
                       task.column_sums + p * kPanel);
  }

  static void first_product(const ProductTask& task, const ActivationTarget& target) {
    const ProductLoop<Part> loop{task};
    const bool gated = target.fn->gated;
    const std::int64_t width = gated ? kLanes : kPanel;
    loop.run([&](float* sums, std::int64_t t, std::int64_t p) {
      const std::int64_t rows = loop.tiles.padded(t);
      const std::int64_t valid = loop.tiles.valid(t);
      to_numbers(task, sums, loop.tiles.begin(t), valid, p);
      Input* tile = static_cast<Input*>(target.to) + loop.tiles.begin(t) * target.padded_intermediate;
      const std::int64_t begin = (target.first_panel + p) * width;
      alignas(64) Input values[Part::kRowTile][kLanes] = {};
      for (std::int64_t v = 0; v < width; v += kLanes) {
        const float* bias = task.bias == nullptr ? nullptr : task.bias + p * kPanel + v;
        const float* up_bias = bias == nullptr || !gated ? nullptr : bias + kLanes;
        for (std::int64_t r = 0; r < valid; ++r) {
          const float* x = sums + r * kPanel + v;
          activate_lanes(target, biased(x, bias), gated ? biased(x + kLanes, up_bias) : Simd::set(0.0f), values[r]);
        }
        if constexpr (PacksWholeRows<Part>) {
          store_rows(target, values, loop.tiles.begin(t), valid, begin + v);
        } else {
          store_inputs(target, values, tile, valid, rows, begin + v);
        }
      }
      if constexpr (PacksWholeRows<Part>) return;
      // The last panel may end before the padding does (k_step of AMX is two panels of gate and up).
      if (begin + width < target.intermediate_size) return;
      for (std::int64_t k = begin + width; k < target.padded_intermediate; k += kLanes)
        store_inputs(target, values, tile, valid, rows, k);
    });
  }

  static void second_product(const ProductTask& task, const RowTarget& target) {
    const ProductLoop<Part> loop{task};
    loop.run([&](float* sums, std::int64_t t, std::int64_t p) {
      to_numbers(task, sums, loop.tiles.begin(t), loop.tiles.valid(t), p);
      const std::int64_t column = target.first_column + p * kPanel;
      const std::int64_t left = target.num_columns - column;
      const float* bias = task.bias == nullptr ? nullptr : task.bias + p * kPanel;
      for (std::int64_t r = 0; r < loop.tiles.valid(t); ++r) {
        float* to = target.rows + target.pairs[loop.tiles.begin(t) + r] * target.row_stride + column;
        for (std::int64_t j = 0; j < kPanel && j < left; j += kLanes) {
          const Vec v = biased(sums + r * kPanel + j, bias == nullptr ? nullptr : bias + j);
          if (left - j >= kLanes) {
            Simd::store(to + j, v);
          } else {
            alignas(64) float lanes[kLanes];
            Simd::store(lanes, v);
            for (std::int64_t i = 0; i < left - j; ++i) to[j + i] = lanes[i];
          }
        }
      }
    });
  }
};

}  // namespace
}  // namespace conclave::experts::grouped
