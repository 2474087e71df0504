// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Strictness on top of nlohmann's parser, by its callback.
#include "io/json_text.hpp"

#include <cmath>
#include <limits>
#include <unordered_set>
#include <vector>

#include "base/error.hpp"

namespace conclave {
namespace {

using nlohmann::json;

/// Deeper than any model's configuration; the bound keeps everything that recurses over a document safe.
constexpr int kMaxDepth = 64;

/// Sees every key before the document forgets that it came twice.
class Watcher {
 public:
  explicit Watcher(const std::string& where) : where_(where) {}

  bool operator()(int depth, json::parse_event_t event, const json& value) {
    using Event = json::parse_event_t;
    if (depth > kMaxDepth) fail(ErrorKind::bad_file, "{}: nested deeper than {} levels", where_, kMaxDepth);
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_end) keys_.pop_back();
    if (event == Event::key && !keys_.back().insert(value.get_ref<const std::string&>()).second)
      fail(ErrorKind::bad_file, "{}: key {} occurs twice", where_, in_quotes(value.get_ref<const std::string&>()));
    return true;
  }

 private:
  const std::string& where_;
  std::vector<std::unordered_set<std::string>> keys_;
};

[[noreturn]] void refuse(const json& value, const std::string& where, std::string_view expected) {
  fail(ErrorKind::bad_file, "{}: given {}, expected {}", where, shown(value), expected);
}

}  // namespace

json parse_json(std::string_view text, const std::string& where) {
  Watcher watcher(where);
  try {
    return json::parse(text.begin(), text.end(), std::ref(watcher));
  } catch (const json::parse_error& error) {
    fail(ErrorKind::bad_file, "{}: not JSON at byte {} of {}", where, error.byte, text.size());
  } catch (const json::exception&) {
    // The parser's one other refusal: a number beyond the range of a double.
    fail(ErrorKind::bad_file, "{}: a number is out of range", where);
  }
}

std::string without_non_finite(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool inside_string = false;
  for (std::size_t i = 0; i < text.size();) {
    if (!inside_string) {
      const std::string_view rest = text.substr(i);
      std::size_t length = 0;
      for (std::string_view word : {"NaN", "Infinity", "-Infinity"})
        if (rest.starts_with(word)) length = word.size();
      if (length > 0) {
        out += "null";
        i += length;
        continue;
      }
    } else if (text[i] == '\\' && i + 1 < text.size()) {
      // An escaped quote does not end the string.
      out += text.substr(i, 2);
      i += 2;
      continue;
    }
    if (text[i] == '"') inside_string = !inside_string;
    out += text[i++];
  }
  return out;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kShown = 120;
  std::string out = "\"";
  for (char c : text.substr(0, kShown)) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      out += c;
  }
  return out + (text.size() > kShown ? "...\"" : "\"");
}

std::string shown(const json& value) {
  if (value.is_string()) return in_quotes(value.get_ref<const std::string&>());
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("an array of {}", value.size());
  return value.dump();
}

std::int64_t json_integer(const json& value, const std::string& where) {
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    refuse(value, where, "an integer below 2^63");
  if (!value.is_number_integer()) refuse(value, where, "an integer");
  return value.get<std::int64_t>();
}

std::uint64_t json_unsigned(const json& value, const std::string& where) {
  if (!value.is_number_unsigned()) refuse(value, where, "an integer from 0 to 2^64 - 1");
  return value.get<std::uint64_t>();
}

double json_number(const json& value, const std::string& where) {
  if (!value.is_number() || !std::isfinite(value.get<double>())) refuse(value, where, "a number");
  return value.get<double>();
}

bool json_boolean(const json& value, const std::string& where) {
  if (!value.is_boolean()) refuse(value, where, "true or false");
  return value.get<bool>();
}

const std::string& json_string(const json& value, const std::string& where) {
  if (!value.is_string()) refuse(value, where, "a string");
  return value.get_ref<const std::string&>();
}

}  // namespace conclave
