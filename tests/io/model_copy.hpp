// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// A model of tests/data/families, loaded to be changed and written to a folder of its own.
#pragma once

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conclave/checkpoint.hpp"
#include "conclave/safetensors.hpp"
#include "io/files.hpp"

namespace conclave::test {

inline std::string family_folder(const std::string& name) {
  return std::string(CONCLAVE_SOURCE_DIR "/tests/data/families/").append(name);
}

struct ModelCopy {
  explicit ModelCopy(const std::string& family)
      : source(family_folder(family) + "/model.safetensors"),
        config(nlohmann::json::parse(read_file(family_folder(family) + "/config.json"))),
        tensors(source.tensors()) {}

  NamedTensor& tensor(const std::string& name) {
    const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
    if (found == tensors.end()) throw std::logic_error("no tensor " + name);
    return *found;
  }
  void erase(const std::string& name) {
    std::erase_if(tensors, [&](const NamedTensor& t) { return t.name == name; });
  }
  void rename(const std::function<std::string(const std::string&)>& change) {
    for (NamedTensor& t : tensors) t.name = change(t.name);
  }

  void write_config() const { folder.write("config.json", config.dump()); }
  void write() const {
    write_config();
    write_safetensors(folder.path("model.safetensors"), tensors);
  }
  /// Two shards: tensors whose index is even, and the others.
  void write_shards(const std::function<void(nlohmann::json& weight_map)>& change = [](auto&) {}) const {
    write_config();
    const std::string names[2] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
    std::vector<NamedTensor> shards[2];
    nlohmann::json map = nlohmann::json::object();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      shards[i % 2].push_back(tensors[i]);
      map[tensors[i].name] = names[i % 2];
    }
    for (int s = 0; s < 2; ++s) write_safetensors(folder.path(names[s]), shards[s]);
    change(map);
    folder.write("model.safetensors.index.json", nlohmann::json{{"metadata", {}}, {"weight_map", map}}.dump());
  }
  Checkpoint open() const { return Checkpoint(folder.path()); }

  TempFolder folder;
  SafetensorsFile source;
  nlohmann::json config;
  std::vector<NamedTensor> tensors;
};

}  // namespace conclave::test
