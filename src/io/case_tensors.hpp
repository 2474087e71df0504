// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the tensors of a case file and its problem. Out: the members of Case that are tensors, and the fields of
// MoeConfig that follow from which tensors there are.
#pragma once

#include "conclave/case_file.hpp"
#include "conclave/safetensors.hpp"

namespace conclave {

/// Throws Error(bad_file) naming the file, the tensor, what was given and what was expected. Shapes are compared with
/// the problem only where the case is expected to run: a case with expect_error may be wrong on purpose, and then the
/// library has to say so.
void read_case_tensors(const SafetensorsFile& file, bool has_bias_given, Case& out);

}  // namespace conclave
