// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Formats that differ from the library's own form in names, types and wrapping only, as data: the codes of a row are
// the library's bytes, in words or blocks; scales are numbers in the library's order.
#pragma once

#include "io/formats/weight_format.hpp"

namespace conclave {

/// What the bytes of a row of codes are wrapped in.
enum class CodeUnit : std::uint8_t {
  byte,
  word,     ///< i32, the first code in its lowest bits
  block16,  ///< [blocks, 16]: 32 halves of bytes
};

struct CodedLayout {
  std::string name;
  QuantKey key = QuantKey::none;
  std::array<std::string_view, 2> codes;
  CodeUnit unit = CodeUnit::byte;
  std::vector<DType> code_dtypes;
  std::array<std::string_view, 2> scale;
  std::string_view global_scale = {};
  bool global_encodes = false;       ///< The stored factor divides when decoding.
  std::string_view zero_point = {};  ///< i32 [ceil(rows / 8), groups]: eight rows in a word
  std::string_view shape = {};       ///< [rows, cols] as integers
  std::uint8_t flip = 0;             ///< Bits that differ from the library's codes in every byte.
  std::vector<std::string_view> unused = {};
};

std::shared_ptr<const WeightFormat> make_coded_format(CodedLayout layout);

}  // namespace conclave
