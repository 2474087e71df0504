// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the keys of a GGUF file. Out: the configuration that the same model has as a Hugging Face checkpoint, for the
// same rules.
#pragma once

#include "io/model_config.hpp"

namespace conclave {

/// Throws Error(bad_file) for an architecture that no row names, naming the known ones, and for keys that are missing.
ModelConfig gguf_config(const nlohmann::json& metadata, const std::string& path);

}  // namespace conclave
