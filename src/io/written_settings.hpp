// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a key of weights. Out: the object quantization_config of a checkpoint that is written under it.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "conclave/quant.hpp"

namespace conclave {

/// `floats`: modules that stay as they are. Throws Error naming the keys that can be written.
nlohmann::json written_settings(QuantKey key, const std::vector<std::string>& floats);

}  // namespace conclave
