// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the bytes of a safetensors file. Out: its tensors in the order of their data, every one checked: known dtype,
// size = shape x dtype, inside the data, no overlap, no hole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "conclave/dtype.hpp"

namespace conclave {

/// Of the format's reference implementation: a longer header is an attack or a broken length.
inline constexpr std::int64_t kMaxHeaderBytes = 100'000'000;

struct HeaderEntry {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  ///< Bytes from the start of the data.
  std::int64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<HeaderEntry> entries;
  std::map<std::string, std::string> metadata;
  std::int64_t data_start = 0;  ///< Bytes from the start of the file.
};

/// Throws Error(bad_file) naming `path`, the tensor, the value and what was expected.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, const std::string& path);

/// "BF16", "F8_E4M3", ...: how the format spells a dtype.
std::string_view safetensors_code(DType dtype) noexcept;
std::optional<DType> dtype_from_safetensors_code(std::string_view code) noexcept;

}  // namespace conclave
