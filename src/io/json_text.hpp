// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: JSON text from outside. Out: a document without duplicate keys and without deep nesting, and typed readers of its
// values. Every refusal is one line that starts with `where` ("folder/config.json" or "file: \"field\"").
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace conclave {

/// Throws Error(bad_file) with the byte where parsing stopped, the key that occurs twice, or the depth.
nlohmann::json parse_json(std::string_view text, const std::string& where);

/// Replaces the bare words NaN, Infinity and -Infinity, which Python writes and JSON does not have, by null.
std::string without_non_finite(std::string_view text);

/// In double quotes, control characters escaped and cut after 120 characters: text of a stranger, fit for one line.
std::string in_quotes(std::string_view text);

/// A value as one short line.
std::string shown(const nlohmann::json& value);

/// Each throws Error(bad_file) "<where>: given X, expected ...".
std::int64_t json_integer(const nlohmann::json& value, const std::string& where);
std::uint64_t json_unsigned(const nlohmann::json& value, const std::string& where);
double json_number(const nlohmann::json& value, const std::string& where);
bool json_boolean(const nlohmann::json& value, const std::string& where);
const std::string& json_string(const nlohmann::json& value, const std::string& where);

}  // namespace conclave
