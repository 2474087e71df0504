// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The sample checkpoint of the repository, and altered copies of its files.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "conclave/safetensors.hpp"

namespace conclave {

std::string sample_folder();
/// Inputs and expected outputs.
std::string sample_io();
inline constexpr const char* kSampleBlock = "model.layers.0.mlp";

/// Copies a safetensors file; `change` may alter the bytes of any tensor (in `bytes`), or return false to leave it out.
void copy_altered(const std::string& from, const std::string& to,
                  const std::function<bool(const NamedTensor& tensor, std::span<std::byte> bytes)>& change);

/// Copies a case file with another `problem` text.
void copy_with_problem(const std::string& from, const std::string& to,
                       const std::function<std::string(const std::string& problem)>& change);

}  // namespace conclave
