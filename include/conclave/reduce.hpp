// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Rows -> output: who multiplies by the router weight and who sums over the k picks. Experts name one of these four;
// finalize applies it. Sums run in the order of k in f32 and are rounded once.
#pragma once

#include <cstdint>
#include <string_view>

#include "conclave/flow.hpp"
#include "conclave/stream.hpp"

namespace conclave {

enum class WeightAndReduceKind : std::uint8_t {
  delegate,       ///< Finalize decides; apply() is an error.
  no_op,          ///< Experts have weighted and reduced already.
  contiguous,     ///< [M, k, H] -> [M, H]
  naive_batched,  ///< [E_local, T, H] -> [M, H]; rows of an expert are its tokens in token order
};
std::string_view name_of(WeightAndReduceKind kind) noexcept;

struct ReduceInput {
  ConstTensorView rows;                       ///< Shape by kind; f32, bf16 or f16.
  ConstTensorView topk_weights;               ///< f32, bf16 or f16 [M, k], as its tag says
  ConstTensorView topk_ids;                   ///< i32 or i64 [M, k], global ids; -1 and remote slots are skipped
  std::optional<ConstTensorView> expert_map;  ///< i32 [E]; absent: all experts are local
  std::int64_t num_experts = 0;               ///< E, the bound of ids
  bool weight_already_applied = false;        ///< apply_router_weight_on_input: every weight counts as 1
};

class WeightAndReduce {
 public:
  virtual ~WeightAndReduce() = default;
  virtual WeightAndReduceKind kind() const noexcept = 0;
  /// Writes every element of output [M, H]; a row without a local expert becomes exact zeros. A zero weight skips its
  /// row, so that 0 * NaN cannot leak.
  virtual void apply(const ReduceInput& input, const TensorView& output, Stream stream) const = 0;
};

/// The implementation of a kind; one shared immutable object each.
const WeightAndReduce& weight_and_reduce(WeightAndReduceKind kind);

}  // namespace conclave
