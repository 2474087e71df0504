// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: expert weights as a caller has them. Out: the panels of engine.hpp, zeros where they are padded, biases in f32 in
// the order of the panels' columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "conclave/config.hpp"
#include "conclave/stream.hpp"
#include "conclave/weights.hpp"
#include "conclave/workspace.hpp"
#include "experts/cpu/engine.hpp"

namespace conclave::experts::grouped {

/// One of the two matrices of all experts.
struct PackedMatrix {
  std::byte* panels = nullptr;          ///< [E_local][num_panels][k / weight_group][panel_columns][weight_group]
  float* bias = nullptr;                ///< [E_local][num_panels][panel_columns], or null.
  float* column_scales = nullptr;       ///< The same, and so is the next: integers only.
  std::int32_t* column_sums = nullptr;  ///< Of the column's codes.
  std::int64_t num_panels = 0;
  std::int64_t panel_bytes = 0;
  std::int64_t panel_columns = 0;
  std::int64_t k = 0;  ///< Padded.

  std::byte* panel(std::int64_t expert, std::int64_t p) const {
    return panels + (expert * num_panels + p) * panel_bytes;
  }
  /// The panel's part of bias, column_scales or column_sums; null where they are.
  template <class T>
  T* of_panel(T* columns, std::int64_t expert, std::int64_t p) const {
    return columns == nullptr ? nullptr : columns + (expert * num_panels + p) * panel_columns;
  }
};

class GroupedWeights final : public PackedWeights {
 public:
  /// Reserves address space; pages come into being as assign() writes them.
  GroupedWeights(const Engine& engine, const Problem& problem, std::int64_t num_local_experts);

  /// Checks the weights, then packs them: expert by expert, in slices small enough that what was given up and what was
  /// packed from it never exist together for long. Throws Error if they do not fit.
  void assign(const Problem& problem, const ExpertWeights& weights, Executor& executor);

  const std::string& layout() const noexcept override { return layout_; }
  std::int64_t bytes() const noexcept override { return storage_.bytes(); }
  std::int64_t num_local_experts() const noexcept override { return num_local_experts_; }
  std::vector<TensorView> expert_tensors() const override;
  const PackedMatrix& w13() const noexcept { return w13_; }
  const PackedMatrix& w2() const noexcept { return w2_; }

 private:
  void take(Arena& arena, const Problem& problem);

  const Engine& engine_;
  std::string layout_;
  std::int64_t num_local_experts_;
  PackedMatrix w13_, w2_;
  Storage storage_;
};

}  // namespace conclave::experts::grouped
