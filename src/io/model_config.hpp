// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: the text of a config.json. Out: its fields, typed, under any of the names that versions of the format gave them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace conclave {

/// Names of one field; where several are present, they must agree.
using Keys = std::initializer_list<std::string_view>;

/// Fields of one object of a model's configuration, seen from one layer: a field that is a list holds one value for
/// each layer. A null counts as absent. Errors name the file, the key, the value and what was expected.
class ModelConfig {
 public:
  /// Parses the text; a multimodal model's text_config takes the place of the whole.
  ModelConfig(std::string_view text, const std::string& path);

  const std::string& path() const noexcept { return path_; }
  /// Of the text model.
  const std::string& model_type() const noexcept { return model_type_; }

  ModelConfig at_layer(std::int64_t layer) const;
  std::int64_t layer() const noexcept { return layer_; }
  /// The object under `key`.
  ModelConfig section(std::string_view key) const;

  bool has(std::string_view key) const { return find(key) != nullptr; }
  /// Of this object, in the order of the alphabet.
  std::vector<std::string> keys() const;
  std::int64_t integer(Keys keys) const;
  std::int64_t integer(Keys keys, std::int64_t absent) const;
  double number(Keys keys) const;
  double number(Keys keys, double absent) const;
  bool boolean(std::string_view key, bool absent) const;
  std::string text(std::string_view key, std::string_view absent) const;
  /// Absent: no value. Elements must be of the type.
  std::optional<std::vector<std::int64_t>> integers(std::string_view key) const;
  std::optional<std::vector<std::string>> texts(std::string_view key) const;

  /// Refuses a field whose value changes the arithmetic in a way that this library does not compute. Absent is fine.
  void expect(std::string_view key, std::initializer_list<nlohmann::json> allowed) const;
  [[noreturn]] void refuse(std::string_view key, std::string_view expected) const;

 private:
  ModelConfig() = default;
  const nlohmann::json* find(std::string_view key) const;
  /// The first of `keys` that is present, for this layer, and its name.
  const nlohmann::json* find(Keys keys, std::string& where) const;
  std::string where(std::string_view key) const;

  std::shared_ptr<const nlohmann::json> fields_;
  std::string path_;
  std::string prefix_;  ///< "ffn_config." inside a section.
  std::string model_type_;
  std::int64_t layer_ = 0;
};

}  // namespace conclave
