// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Typed look-ups with the names of the file and the key in every message.
#include "io/model_config.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "io/json_text.hpp"

namespace conclave {

using nlohmann::json;

ModelConfig::ModelConfig(std::string_view text, const std::string& path) : path_(path) {
  json document = parse_json(without_non_finite(text), path);
  if (!document.is_object()) fail(ErrorKind::bad_file, "{}: given {}, expected an object", path, shown(document));
  const auto nested = document.find("text_config");
  if (nested != document.end() && nested->is_object()) {
    // Keys beside text_config speak of the whole model; what a text model needs is inside, except the one that says
    // that all weights are quantised.
    json inner = *nested;
    for (const char* key : {"quantization_config"})
      if (document.contains(key) && !inner.contains(key)) inner[key] = document[key];
    if (!inner.contains("model_type") && document.contains("model_type")) inner["model_type"] = document["model_type"];
    document = std::move(inner);
    prefix_ = "text_config.";
  }
  fields_ = std::make_shared<const json>(std::move(document));
  const json* type = find("model_type");
  if (type == nullptr) fail(ErrorKind::bad_file, "{}: no \"model_type\"", path);
  model_type_ = json_string(*type, where("model_type"));
}

ModelConfig ModelConfig::at_layer(std::int64_t layer) const {
  ModelConfig copy = *this;
  copy.layer_ = layer;
  return copy;
}

ModelConfig ModelConfig::section(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr || !value->is_object())
    fail(ErrorKind::bad_file, "{}: given {}, expected an object", where(key), value ? shown(*value) : "nothing");
  ModelConfig inner;
  inner.fields_ = std::make_shared<const json>(*value);
  inner.path_ = path_;
  inner.prefix_ = prefix_ + std::string(key) + ".";
  inner.model_type_ = model_type_;
  inner.layer_ = layer_;
  return inner;
}

std::vector<std::string> ModelConfig::keys() const {
  std::vector<std::string> names;
  for (const auto& [name, _] : fields_->items()) names.push_back(name);
  return names;
}

std::string ModelConfig::where(std::string_view key) const {
  return fmt::format("{}: \"{}{}\"", path_, prefix_, key);
}

const json* ModelConfig::find(std::string_view key) const {
  const auto found = fields_->find(key);
  return found == fields_->end() || found->is_null() ? nullptr : &*found;
}

const json* ModelConfig::find(Keys keys, std::string& where_found) const {
  const json* first = nullptr;
  for (std::string_view key : keys) {
    const json* value = find(key);
    if (value != nullptr && value->is_array()) {
      if (layer_ >= static_cast<std::int64_t>(value->size()))
        fail(ErrorKind::bad_file, "{}: a list of {}, expected a value for layer {}", where(key), value->size(), layer_);
      value = &(*value)[static_cast<std::size_t>(layer_)];
    }
    if (value == nullptr) continue;
    if (first != nullptr && *first != *value)
      fail(ErrorKind::bad_file, "{}: given {}, expected {} as in {}", where(key), shown(*value), shown(*first),
           where_found);
    if (first == nullptr) where_found = where(key);
    first = first == nullptr ? value : first;
  }
  return first;
}

std::int64_t ModelConfig::integer(Keys keys) const {
  std::string at;
  const json* value = find(keys, at);
  if (value == nullptr) fail(ErrorKind::bad_file, "{} is missing, expected an integer", where(*keys.begin()));
  return json_integer(*value, at);
}

std::int64_t ModelConfig::integer(Keys keys, std::int64_t absent) const {
  std::string at;
  const json* value = find(keys, at);
  return value == nullptr ? absent : json_integer(*value, at);
}

double ModelConfig::number(Keys keys, double absent) const {
  std::string at;
  const json* value = find(keys, at);
  return value == nullptr ? absent : json_number(*value, at);
}

double ModelConfig::number(Keys keys) const {
  std::string at;
  const json* value = find(keys, at);
  if (value == nullptr) fail(ErrorKind::bad_file, "{} is missing, expected a number", where(*keys.begin()));
  return json_number(*value, at);
}

bool ModelConfig::boolean(std::string_view key, bool absent) const {
  const json* value = find(key);
  return value == nullptr ? absent : json_boolean(*value, where(key));
}

std::string ModelConfig::text(std::string_view key, std::string_view absent) const {
  const json* value = find(key);
  return value == nullptr ? std::string(absent) : json_string(*value, where(key));
}

std::optional<std::vector<std::int64_t>> ModelConfig::integers(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) refuse(key, "a list of integers");
  std::vector<std::int64_t> out;
  for (const json& element : *value) out.push_back(json_integer(element, where(key)));
  return out;
}

std::optional<std::vector<std::string>> ModelConfig::texts(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) refuse(key, "a list of strings");
  std::vector<std::string> out;
  for (const json& element : *value) out.push_back(json_string(element, where(key)));
  return out;
}

void ModelConfig::expect(std::string_view key, std::initializer_list<json> allowed) const {
  std::string at;
  const json* value = find({key}, at);
  if (value == nullptr || std::find(allowed.begin(), allowed.end(), *value) != allowed.end()) return;
  std::string list;
  for (const json& a : allowed) list += (list.empty() ? "" : " or ") + shown(a);
  if (list.empty()) list = "no such field";
  fail(ErrorKind::bad_file, "{}: given {}, expected {}: nothing else is computed for {}", at, shown(*value), list,
       model_type_);
}

void ModelConfig::refuse(std::string_view key, std::string_view expected) const {
  const json* value = find(key);
  fail(ErrorKind::bad_file, "{}: given {}, expected {}", where(key), value ? shown(*value) : "nothing", expected);
}

}  // namespace conclave
