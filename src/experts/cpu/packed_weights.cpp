// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: expert weights as a caller has them. Out: panels.
#include "experts/cpu/packed_weights.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.hpp"
#include "base/round_up.hpp"
#include "cpu/float_convert.hpp"
#include "cpu/parallel_for.hpp"
#include "experts/cpu/pack_scaled.hpp"
#include "experts/cpu/scaled_formats.hpp"
#include "experts/cpu/source_matrix.hpp"
#include "experts/weights_check.hpp"

namespace conclave::experts::grouped {
namespace {

PackedMatrix shape_of(const Engine& engine, std::int64_t columns, std::int64_t columns_per_panel, std::int64_t k) {
  PackedMatrix m;
  m.num_panels = (columns + columns_per_panel - 1) / columns_per_panel;
  m.panel_columns = engine.panel_columns;
  m.k = round_up(k, engine.k_step);
  m.panel_bytes = engine.scaled != nullptr ? m.k / engine.scaled->group * engine.scaled->group_bytes(m.panel_columns)
                                           : bytes_of(engine.weight_dtype, m.k * m.panel_columns);
  return m;
}

/// Values of k of one row at a time. Rows are a power of two apart in most models, so that the same column of 32 rows
/// falls into one set of the cache: row by row, each line is read once.
constexpr std::int64_t kChunk = 64;

/// T is the packed element; the source is T itself, or 16-bit floats that are widened.
template <class T>
void pack_panel(const SourceMatrix& source, std::int64_t p, const PackedMatrix& to, T* panel) {
  const std::int64_t group = source.engine->weight_group;
  const std::int64_t columns = to.panel_columns;
  const std::int64_t k_end = source.matrix.size(1);
  const bool widens = source.matrix.dtype != source.engine->weight_dtype;
  for (std::int64_t k0 = 0; k0 < to.k; k0 += kChunk) {
    const std::int64_t padded = std::min(kChunk, to.k - k0);
    const std::int64_t count = std::clamp<std::int64_t>(k_end - k0, 0, padded);
    for (std::int64_t j = 0; j < columns; ++j) {
      const std::int64_t row = source.row(p, j);
      T values[kChunk] = {};
      if (row >= 0 && count > 0) {
        const std::byte* from = source.address(row) + bytes_of(source.matrix.dtype, k0);
        if (!widens) {
          std::memcpy(values, from, static_cast<std::size_t>(count) * sizeof(T));
        } else if constexpr (sizeof(T) == sizeof(float)) {
          cpu::load_f32(from, source.matrix.dtype, count, values);
        }
      }
      T* out = panel + k0 * columns + j * group;
      for (std::int64_t k = 0; k < padded; ++k) out[k / group * group * columns + k % group] = values[k];
    }
  }
}

void pack_bias(const SourceMatrix& source, const ConstTensorView& bias, const PackedMatrix& to, std::int64_t expert) {
  for (std::int64_t p = 0; p < to.num_panels; ++p)
    for (std::int64_t j = 0; j < to.panel_columns; ++j) {
      const std::int64_t row = source.row(p, j);
      to.of_panel(to.bias, expert, p)[j] =
          row < 0 ? 0.0f : cpu::load_element(bias.data, bias.dtype, row * bias.stride(0));
    }
}

/// Scales and sums of the codes of each column, zeros where a column only pads.
void pack_columns(const SourceMatrix& source, const ScaledSource& codes, const PackedMatrix& to, std::int64_t expert) {
  for (std::int64_t p = 0; p < to.num_panels; ++p)
    for (std::int64_t j = 0; j < to.panel_columns; ++j) {
      const std::int64_t row = source.row(p, j);
      std::int32_t sum = 0;
      const auto* values = reinterpret_cast<const std::int8_t*>(source.address(row < 0 ? 0 : row));
      for (std::int64_t k = 0; row >= 0 && k < source.matrix.size(1); ++k) sum += values[k];
      to.of_panel(to.column_sums, expert, p)[j] = sum;
      to.of_panel(to.column_scales, expert, p)[j] = row < 0 ? 0.0f : codes.scale(row, 0);
    }
}

using GiveUp = std::function<void(const void*, std::int64_t)>;

void give_up_rows(const SourceMatrix& source, std::int64_t begin, std::int64_t end, const GiveUp& give_up) {
  const std::int64_t row_bytes = bytes_of(source.matrix.dtype, source.matrix.size(1));
  if (begin >= end || row_bytes == 0) return;
  if (source.matrix.stride(0) == source.matrix.size(1))
    return give_up(source.address(begin), (end - begin) * row_bytes);
  for (std::int64_t row = begin; row < end; ++row) give_up(source.address(row), row_bytes);
}

void give_up_panels(const SourceMatrix& source, std::int64_t p0, std::int64_t p1, const GiveUp& give_up) {
  const std::int64_t begin = p0 * source.columns_per_panel();
  const std::int64_t end = std::min(p1 * source.columns_per_panel(), source.columns);
  if (!source.gated) return give_up_rows(source, begin, end, give_up);
  if (source.layout == W13Layout::interleaved) return give_up_rows(source, 2 * begin, 2 * end, give_up);
  give_up_rows(source, begin, end, give_up);
  give_up_rows(source, source.columns + begin, source.columns + end, give_up);
}

/// What is packed between two gifts of source bytes: small beside the weights of a layer, large beside the pages at its
/// ends, which cannot be given back because the next slice needs the rest of them.
std::int64_t slice_bytes(std::int64_t weight_bytes) {
  return std::clamp<std::int64_t>(weight_bytes / 64, std::int64_t{256} << 10, std::int64_t{16} << 20);
}

/// `codes`: where the weights are quantised; else null.
void pack_expert(const SourceMatrix& source, const ScaledSource* codes, const PackedMatrix& to, std::int64_t expert,
                 std::int64_t max_bytes, const GiveUp& give_up, Executor& executor) {
  const std::int64_t slice = std::max<std::int64_t>(1, max_bytes / std::max<std::int64_t>(1, to.panel_bytes));
  for (std::int64_t p0 = 0; p0 < to.num_panels; p0 += slice) {
    const std::int64_t p1 = std::min(p0 + slice, to.num_panels);
    cpu::parallel_for_dynamic(executor, p1 - p0, 1, [&](std::int64_t begin, std::int64_t end, int /*thread*/) {
      for (std::int64_t p = p0 + begin; p < p0 + end; ++p) {
        std::byte* panel = to.panel(expert, p);
        if (codes != nullptr) {
          pack_scaled_panel(source, *codes, p, to.k, reinterpret_cast<std::uint8_t*>(panel));
        } else if (source.engine->weight_dtype == DType::f32) {
          pack_panel(source, p, to, reinterpret_cast<float*>(panel));
        } else if (source.engine->weight_dtype == DType::i8) {
          pack_panel(source, p, to, reinterpret_cast<std::uint8_t*>(panel));
        } else {
          pack_panel(source, p, to, reinterpret_cast<std::uint16_t*>(panel));
        }
      }
    });
    if (give_up) give_up_panels(source, p0, p1, give_up);
  }
}

/// Codes are also loaded up to three bytes further on (codes_avx512.hpp), behind the last panel too.
constexpr std::int64_t kReadBehind = 64;

}  // namespace

GroupedWeights::GroupedWeights(const Engine& engine, const Problem& problem, std::int64_t num_local_experts)
    : engine_(engine), layout_(engine.name), num_local_experts_(num_local_experts), storage_([&] {
        const MoeConfig& moe = problem.moe;
        const bool gated = is_gated(moe.activation);
        w13_ = shape_of(engine, moe.intermediate_size, gated ? engine.panel_columns / 2 : engine.panel_columns,
                        moe.expert_width());
        w2_ = shape_of(engine, moe.expert_width(), engine.panel_columns, moe.intermediate_size);
        Arena measure = Arena::measuring();
        take(measure, problem);
        return measure.used() + kReadBehind;
      }()) {
  Arena arena({storage_.data(), static_cast<std::size_t>(storage_.bytes())}, Device{});
  take(arena, problem);
}

void GroupedWeights::take(Arena& arena, const Problem& problem) {
  const auto panels = [&](PackedMatrix& m) {
    m.panels = arena.take(DType::u8, {num_local_experts_ * m.num_panels * m.panel_bytes}).as<std::byte>();
  };
  const auto columns = [&]<class T>(const PackedMatrix& m, T*& to, DType dtype, bool wanted) {
    if (wanted) to = arena.take(dtype, {num_local_experts_ * m.num_panels * m.panel_columns}).template as<T>();
  };
  panels(w13_);
  panels(w2_);
  columns(w13_, w13_.bias, DType::f32, problem.moe.has_w13_bias);
  columns(w2_, w2_.bias, DType::f32, adds_w2_bias(problem));
  for (PackedMatrix* m : {&w13_, &w2_}) {
    columns(*m, m->column_scales, DType::f32, engine_.integers != nullptr);
    columns(*m, m->column_sums, DType::i32, engine_.integers != nullptr);
  }
}

void GroupedWeights::assign(const Problem& problem, const ExpertWeights& weights, Executor& executor) {
  check_weights(problem, weights);
  if (engine_.scaled != nullptr) check_codes(problem, weights, executor);
  require(weights.num_local_experts() == num_local_experts_,
          "w13: given {} local experts, expected {} as packed before", weights.num_local_experts(), num_local_experts_);
  const MoeConfig& moe = problem.moe;
  const std::int64_t slice = slice_bytes(bytes());
  for (std::int64_t e = 0; e < num_local_experts_; ++e) {
    const SourceMatrix w13{weights.w13.at(e), &engine_, moe.intermediate_size, is_gated(moe.activation),
                           moe.w13_layout};
    const SourceMatrix w2{weights.w2.at(e), &engine_, moe.expert_width(), false, moe.w13_layout};
    std::optional<ScaledSource> w13_codes, w2_codes;
    if (engine_.scaled != nullptr) {
      const QuantKey key = problem.quant.weights;
      w13_codes.emplace(*engine_.scaled, quant::w13_matrices(moe, key, weights, e));
      w2_codes.emplace(*engine_.scaled, quant::w2_matrices(moe, key, weights, e));
    }
    if (engine_.integers != nullptr) {
      // Before the panels are packed: the rows are given up then.
      const QuantKey key = problem.quant.weights;
      pack_columns(w13, {kInt8Format, quant::w13_matrices(moe, key, weights, e)}, w13_, e);
      pack_columns(w2, {kInt8Format, quant::w2_matrices(moe, key, weights, e)}, w2_, e);
    }
    pack_expert(w13, w13_codes ? &*w13_codes : nullptr, w13_, e, slice, weights.give_up, executor);
    pack_expert(w2, w2_codes ? &*w2_codes : nullptr, w2_, e, slice, weights.give_up, executor);
    if (w13_.bias != nullptr) pack_bias(w13, weights.w13_bias->at(e), w13_, e);
    if (w2_.bias != nullptr) pack_bias(w2, weights.w2_bias->at(e), w2_, e);
  }
}

std::vector<TensorView> GroupedWeights::expert_tensors() const {
  std::vector<TensorView> tensors;
  for (const PackedMatrix* m : {&w13_, &w2_}) {
    tensors.emplace_back(m->panels, DType::u8,
                         std::initializer_list<std::int64_t>{num_local_experts_, m->num_panels * m->panel_bytes});
    const auto add_columns = [&](void* columns, DType dtype) {
      if (columns != nullptr)
        tensors.emplace_back(columns, dtype,
                             std::initializer_list<std::int64_t>{num_local_experts_, m->num_panels * m->panel_columns});
    };
    add_columns(m->bias, DType::f32);
    add_columns(m->column_scales, DType::f32);
    add_columns(m->column_sums, DType::i32);
  }
  return tensors;
}

}  // namespace conclave::experts::grouped
