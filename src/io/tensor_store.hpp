// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a model folder. Out: every tensor of its one file or of its shards, by name, checked against the index.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "conclave/safetensors.hpp"

namespace conclave {

struct StoredTensor {
  const SafetensorsFile* file = nullptr;
  ConstTensorView view;
};

class TensorStore {
 public:
  /// Opens model.safetensors or, without one, the shards that model.safetensors.index.json names. Throws
  /// Error(bad_file) on a missing shard, a tensor that the index names and its shard lacks, a tensor in two shards, or
  /// a path that leaves the folder.
  explicit TensorStore(const std::string& folder);

  const std::map<std::string, StoredTensor, std::less<>>& tensors() const noexcept { return tensors_; }
  const StoredTensor* find(std::string_view name) const noexcept;
  /// What to name in an error about a tensor that is nowhere: the one file, or the index.
  const std::string& path() const noexcept { return path_; }
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const noexcept { return files_; }

 private:
  void open_shards(const std::string& folder);
  void open_file(const std::string& path);

  std::string path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

}  // namespace conclave
