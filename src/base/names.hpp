// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Tables of (value, name) and the two look-ups over them, so that every enum of the public API is spelled once.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.hpp"

namespace conclave {

template <class Enum, std::size_t N>
using NameTable = std::array<std::pair<Enum, std::string_view>, N>;

template <class Enum, std::size_t N>
std::string_view name_in(const NameTable<Enum, N>& table, Enum value) noexcept {
  for (const auto& [v, name] : table)
    if (v == value) return name;
  return "?";
}

/// Throws Error naming `what`, the value and every legal name.
template <class Enum, std::size_t N>
Enum value_in(const NameTable<Enum, N>& table, std::string_view what, std::string_view name) {
  for (const auto& [v, n] : table)
    if (n == name) return v;
  std::string legal;
  for (const auto& entry : table) legal += (legal.empty() ? "" : ", ") + std::string(entry.second);
  fail(ErrorKind::invalid_argument, "unknown {} \"{}\"; expected one of {}", what, name, legal);
}

/// The values of a table, in its order.
template <class Enum, std::size_t N>
constexpr std::array<Enum, N> values_of(const NameTable<Enum, N>& table) {
  std::array<Enum, N> values{};
  for (std::size_t i = 0; i < N; ++i) values[i] = table[i].first;
  return values;
}

}  // namespace conclave
