// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// An `Element` that multiplies codes (int8_int8_avx2.cpp shows one) -> an Engine whose rows become int8 codes, one
// scale for each: hidden states before the first product, the activation before the second. Sums are exact, so that a
// result depends on neither the order of additions nor the instruction set.
//
// An element has what VectorKernel asks for, its registers holding int32 sums under the name of floats, and
//   kInputOffset    added to the codes of rows, for units that want one side unsigned: column_sums take it away again
#pragma once

#include <cstring>
#include <limits>

#include "experts/cpu/any_source.hpp"
#include "experts/cpu/epilogues.hpp"
#include "experts/cpu/vector_kernel.hpp"
#include "quant/family.hpp"

namespace conclave::experts::grouped {
namespace {

/// `Part` at one type of activations -> codes in the layout of inputs. As int8_family() does it, bit for bit.
template <class Part>
struct IntegerRows {
  using Ops = RowOps<Part>;
  using Simd = typename Part::Simd;
  using Vec = typename Simd::Vec;
  using Source = typename Part::Source;
  using Input = typename Part::Kernel::Input;
  static constexpr std::int64_t kLanes = Simd::kLanes;
  static constexpr std::int64_t kGroup = Part::Kernel::kWeightGroup;
  static constexpr std::int64_t kSteps = Part::kSteps;

  static Vec load(const Source* from, std::int64_t k, std::int64_t count) {
    return count - k >= kLanes ? Part::load_source(from + k) : Ops::load_some(from + k, count > k ? count - k : 0);
  }

  /// Amax / 127; NaN for a row that is not finite.
  static float scale_of(const Source* from, std::int64_t count) {
    Vec amax = Simd::set(0.0f), difference = Simd::set(0.0f);
    for (std::int64_t k = 0; k < count; k += kLanes) {
      const Vec v = load(from, k, count);
      amax = Simd::at_least(Simd::at_least(v, -v), amax);
      difference = difference + (v - v);  // NaN once a value is NaN or infinite.
    }
    alignas(64) float lanes[kLanes], differences[kLanes];
    Simd::store(lanes, amax);
    Simd::store(differences, difference);
    float most = quant::kSmallestAmax;
    for (std::int64_t j = 0; j < kLanes; ++j) {
      if (differences[j] != 0.0f) return std::numeric_limits<float>::quiet_NaN();
      most = lanes[j] > most ? lanes[j] : most;
    }
    return most / 127.0f;
  }

  /// Where value k of row r is among `rows`: [k / group][step][row][the group's values k % steps == step].
  static std::int64_t place(std::int64_t k, std::int64_t r, std::int64_t rows) {
    const std::int64_t i = k % kGroup;
    return k / kGroup * kGroup * rows + i % kSteps * rows * (kGroup / kSteps) + r * (kGroup / kSteps) + i / kSteps;
  }

  static void store_codes(const PackRowsTask& task, const Source* from, std::int64_t r, float scale) {
    // Added to a number of less than 2^22, it leaves the nearest integer, ties to even, in the low bits.
    const Vec round = Simd::set(0x1.8p23f);
    const Vec by = Simd::set(scale);
    auto* to = static_cast<Input*>(task.to);
    for (std::int64_t k = 0; k < task.k; k += kLanes) {
      alignas(64) float lanes[kLanes];
      Simd::store(lanes, load(from, k, task.num_columns) / by + round);
      for (std::int64_t j = 0; j < kLanes && k + j < task.k; ++j) {
        std::uint32_t bits;
        std::memcpy(&bits, &lanes[j], sizeof(bits));
        const auto code = static_cast<std::int16_t>(static_cast<std::uint16_t>(bits));
        to[place(k + j, r, task.padded_rows)] = static_cast<Input>(code + Part::kInputOffset);
      }
    }
  }

  static void pack_rows(const PackRowsTask& task) {
    for (std::int64_t r = 0; r < task.valid_rows; ++r) {
      const Source* from = Ops::row(task, r);
      const float scale = scale_of(from, task.num_columns);
      task.scales[r] = scale;
      if (scale == scale) {
        store_codes(task, from, r, scale);
      } else {
        // Whatever the codes are, the scale makes the row NaN.
        for (std::int64_t k = 0; k < task.k; ++k)
          static_cast<Input*>(task.to)[place(k, r, task.padded_rows)] = static_cast<Input>(Part::kInputOffset);
      }
    }
  }
};

template <class Element>
struct IntegerPart : Element {
  using Simd = Element;
  using Kernel = VectorKernel<Element>;
  using Vec = typename Element::Vec;
  using Integers [[gnu::vector_size(sizeof(Vec))]] = std::int32_t;
  using Unsigned [[gnu::vector_size(sizeof(Vec))]] = std::uint32_t;
  static constexpr std::int64_t kRowTile = Kernel::kRowTile;
  static constexpr std::int64_t kRowQuantum = 1;
  static constexpr std::int64_t kStep = Kernel::kWeightGroup;
  /// 16 (AVX2) or 32 KiB of a panel.
  static constexpr std::int64_t kBlock = 1024;
  static constexpr std::int64_t kBlockTiles = 16;
  static constexpr std::int64_t kSumTiles = kSumTilesOf<Element>;
  static constexpr bool kPacksWholeRows = true;

  static void store_input(float* p, Vec v) { Element::store(p, v); }

  /// sums[row][column] in place: (sum - offset * sum of the column's codes) * scales. The subtraction wraps around as
  /// the additions did, and what comes out fits.
  static void to_numbers(float* sums, std::int64_t rows, const float* row_scales, const float* column_scales,
                         const std::int32_t* column_sums) {
    constexpr std::int64_t kLanes = Element::kLanes;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t j = 0; j < Kernel::kPanel; j += kLanes) {
        float* at = sums + r * Kernel::kPanel + j;
        Unsigned sum, of_column;
        std::memcpy(&sum, at, sizeof(sum));
        std::memcpy(&of_column, column_sums + j, sizeof(of_column));
        sum -= of_column * static_cast<std::uint32_t>(Element::kInputOffset);
        const Vec number = __builtin_convertvector(reinterpret_cast<Integers>(sum), Vec);
        Element::store(at, number * Element::set(row_scales[r]) * Element::load(column_scales + j));
      }
  }
};

template <class Part>
void pack_integer_rows(const PackRowsTask& task) {
  with_source<Part>(task.dtype, [&]<class Sourced>() { IntegerRows<Sourced>::pack_rows(task); });
}

inline constexpr QuantKey kInt8ColumnKeys[] = {QuantKey::int8_tensor, QuantKey::int8_channel};
/// 2^17 products of at most 127 and 128.
inline constexpr IntegerFormat kInt8Int8Format{kInt8ColumnKeys, QuantKey::int8_token, std::int64_t{1} << 17};

template <class Element>
constexpr Engine make_integer_engine(CodesLabel label) {
  using Part = IntegerPart<Element>;
  using Kernel = typename Part::Kernel;
  return Engine{
      .name = label.name,
      .unit = label.unit,
      .feature = label.feature,
      .feature_name = label.feature_name,
      .slow = nullptr,
      .dtypes = kAnyType,
      .weight_dtype = DType::i8,
      .widens_weights = false,
      .scaled = nullptr,
      .integers = &kInt8Int8Format,
      .packs_whole_rows = true,
      .row_tile = Part::kRowTile,
      .row_quantum = Part::kRowQuantum,
      .block_tiles = Part::kBlockTiles,
      .sum_tiles = Part::kSumTiles,
      .panel_columns = Kernel::kPanel,
      .weight_group = Kernel::kWeightGroup,
      .k_step = Part::kStep,
      .k_block = Part::kBlock,
      .input_bytes = sizeof(typename Kernel::Input),
      .pack_rows = &pack_integer_rows<Part>,
      .first_product = &Epilogues<Part>::first_product,
      .second_product = &Epilogues<Part>::second_product,
      .combine = &combine_to_any_type<Part>,
  };
}

}  // namespace
}  // namespace conclave::experts::grouped
