// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// One problem with its tensors and its right answer in one safetensors file (docs/case-file.md has the grammar): what a
// bug report contains, what tests/cases holds, what --record writes and replay reads. Unknown fields are errors.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "conclave/config.hpp"
#include "conclave/layer.hpp"

namespace conclave {

struct CaseTolerance {
  double atol = 0;
  double rtol = 0;
};

struct Case {
  std::string name;  ///< File name without folder and extension.
  MoeConfig moe;
  QuantConfig quant;
  std::optional<CaseTolerance> tolerance;  ///< Absent: relative error under 1e-5 (f32) or 6e-3 (bf16, f16).
  std::string expect_error;                ///< Part of the message that must refuse it; empty: it must run.
  std::string note;

  ConstTensorView hidden_states;  ///< [M, H]
  std::optional<ConstTensorView> router_logits;
  std::optional<ConstTensorView> topk_ids, topk_weights;
  LayerWeights weights;  ///< Views into the file.
  std::optional<ConstTensorView> expected, expected_topk_ids, expected_topk_weights, expected_counts;
};

/// Throws Error naming the file, the field or tensor, its value and what was expected.
Case read_case(const std::string& path);
Case parse_case(std::span<const std::byte> bytes, const std::string& name);
/// Writes atomically; views are copied.
void write_case(const std::string& path, const Case& value);

}  // namespace conclave
