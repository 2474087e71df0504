// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Named shapes: the MoE layer of a published model as a MoeConfig, without its weights.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "conclave/config.hpp"

namespace conclave::cli {

/// A name of the table, or "E,k,H,I" (silu, top-k then softmax, nothing shared). Throws Error listing the names.
/// dtype and weight_dtype are bf16, as every one of these models is published.
MoeConfig config_of_shape(const std::string& shape);

/// "mixtral, mixtral-8x22b, ..."
std::string shape_names();

}  // namespace conclave::cli
