// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A model folder in floats -> the same model with its routed experts in codes, in a layout that public tools read
// (docs/formats.md).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "conclave/quant.hpp"

namespace conclave {

struct QuantisedCheckpoint {
  std::string format;  ///< "compressed-tensors pack-quantized"
  std::int64_t num_blocks = 0;
  std::int64_t bytes_before = 0, bytes_after = 0;  ///< Of the routed experts.
};

/// Keys that have a layout to be written in.
std::span<const QuantKey> writable_quant_keys() noexcept;

/// Writes a folder beside `output` and renames it, so that `output` is whole or not there. Everything but the routed
/// experts is copied as it is; config.json says what was done. Throws Error for a folder that exists and is not empty,
/// a model whose weights are codes already, an architecture that keeps its experts in one tensor, and groups that do
/// not divide.
QuantisedCheckpoint quantise_checkpoint(const std::string& model, QuantKey key, const std::string& output);

}  // namespace conclave
