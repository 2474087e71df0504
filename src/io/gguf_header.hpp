// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// The header of a GGUF file (version 3, little-endian): keys with typed values, and where each tensor lies. Everything
// is checked before anything points into the file.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "io/gguf_types.hpp"

namespace conclave {

struct GgufEntry {
  std::string name;
  std::vector<std::int64_t> shape;  ///< The last extent is that of neighbours; the file has it first.
  std::uint32_t type = 0;
  std::int64_t begin = 0;  ///< Bytes from the start of the file.
  std::int64_t bytes = 0;  ///< 0 for types that gguf_type() does not know.
};

struct GgufHeader {
  /// Numbers, booleans, texts, and arrays of numbers as long as a model may have layers. Other arrays (vocabularies)
  /// are skipped.
  nlohmann::json metadata = nlohmann::json::object();
  std::vector<GgufEntry> tensors;
};

/// Throws Error(bad_file) naming `path`, the key or tensor, the value and what was expected.
GgufHeader parse_gguf_header(std::span<const std::byte> file, const std::string& path);

}  // namespace conclave
