// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the number of a GGUF tensor type. Out: its name, and how its elements lie.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "conclave/dtype.hpp"

namespace conclave {

struct GgufType {
  std::uint32_t id = 0;
  std::string_view name;
  std::int64_t block = 1;        ///< Elements of a row that lie together,
  std::int64_t block_bytes = 0;  ///< in this many bytes.
  std::optional<DType> dtype{};  ///< Of types that are not blocks.
};

/// Null for a number that no published version knows.
const GgufType* gguf_type(std::uint32_t id) noexcept;

}  // namespace conclave
