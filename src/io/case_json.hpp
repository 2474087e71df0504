// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the JSON text of a case file's `problem`. Out: its fields, and back. docs/case-file.md has the grammar.
#pragma once

#include <string>

#include "conclave/case_file.hpp"

namespace conclave {

/// Fills moe, quant, tolerance, expect_error and note. Throws Error(bad_file) naming `where`, the field, its value and
/// what was expected. What follows from the tensors (has_w13_bias, shared, weight_dtype, ...) is left alone.
/// `has_bias_given`: the text says whether the router has a correction bias.
void read_problem(const std::string& text, const std::string& where, Case& out, bool& has_bias_given);

/// The shortest text that read_problem turns into the same problem.
std::string write_problem(const Case& value);

}  // namespace conclave
