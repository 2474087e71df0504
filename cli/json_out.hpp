// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Plain structs of the library -> JSON with the names that case files and docs use.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "conclave/config.hpp"
#include "conclave/plan.hpp"

namespace conclave::cli {

/// Fields keep the order in which they are written.
using Json = nlohmann::ordered_json;

Json to_json(const MoeConfig& config);
Json to_json(const ParallelConfig& parallel);
Json to_json(const QuantConfig& quant);
Json to_json(const DeviceFacts& facts);
Json to_json(const StagePlan& stage);
Json to_json(const CostPoint& cost);
Json to_json(const Plan& plan);

/// One document on stdout, and a newline.
void print_json(const Json& value);
/// Text on stdout.
void print_text(const std::string& text);

}  // namespace conclave::cli
