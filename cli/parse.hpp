// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Texts of options -> values. Each function throws Error naming the option, the text and what was expected.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "conclave/config.hpp"
#include "conclave/registry.hpp"

namespace conclave::cli {

/// "1,8,64"
std::vector<std::int64_t> parse_counts(const char* option, const std::string& text);
double parse_number(const char* option, const std::string& text);
std::vector<std::string> split(const std::string& text, char separator);

/// f32, bf16 or f16.
DType parse_dtype(const char* option, const std::string& text);

/// NAME or NAME:limit=7,alpha=1.7: sets activation and its constants.
void parse_activation(const std::string& text, MoeConfig& config);

/// "cpu_f32_avx2" or "experts/cpu_f32_avx2" -> the name in the list.
template <class Part>
std::string part_name(const char* option, const PartList<Part>& list, const std::string& text);

}  // namespace conclave::cli
