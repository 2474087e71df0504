// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Files of inputs and outputs: `<block>.input`, `<block>.output` and what the block's router returned.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "conclave/checkpoint.hpp"
#include "conclave/safetensors.hpp"

namespace conclave::cli {

/// The blocks of `checkpoint` that `--block` names ("all" or one name) and that have an input in `file`.
/// Throws Error if there is none. Blocks that "all" has to leave out are appended to `skipped`.
std::vector<std::string> blocks_to_run(const Checkpoint& checkpoint, const SafetensorsFile& file,
                                       const std::string& option, std::vector<std::string>& skipped);

/// The tensor as a matrix [M, hidden_size]; leading dimensions are flattened. Throws Error naming file and tensor.
ConstTensorView rows_of(const SafetensorsFile& file, const std::string& name, std::int64_t hidden_size);

/// The integer tensor [M, top_k] among `<block>.topk_ids` and `<block>.router_out0` to 2, as i32; nothing if none is.
std::optional<Tensor> ids_of(const SafetensorsFile& file, const std::string& block, std::int64_t num_tokens,
                             std::int64_t top_k);

}  // namespace conclave::cli
