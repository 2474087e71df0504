// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a model folder, or one GGUF file. Out: every tensor of it by name, checked against the index where there is one.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "conclave/safetensors.hpp"
#include "io/gguf_header.hpp"
#include "io/mapped_file.hpp"

namespace conclave {

/// A file that tensors are mapped from.
class TensorFile {
 public:
  virtual ~TensorFile() = default;
  virtual const std::string& path() const noexcept = 0;
  /// As SafetensorsFile::give_up.
  virtual void give_up(const void* begin, std::int64_t bytes) const noexcept = 0;
};

struct StoredTensor {
  const TensorFile* file = nullptr;
  ConstTensorView view;
  /// Of a GGUF tensor in blocks, whose view then has the bytes of a row as its last extent: "Q4_0".
  std::string_view block_type = {};
};

class TensorStore {
 public:
  /// Opens model.safetensors or, without one, the shards that model.safetensors.index.json names. Throws
  /// Error(bad_file) on a missing shard, a tensor that the index names and its shard lacks, a tensor in two shards, or
  /// a path that leaves the folder.
  explicit TensorStore(const std::string& folder);
  /// The tensors of one GGUF file whose header was read.
  TensorStore(const std::string& path, std::unique_ptr<const MappedFile> file, const GgufHeader& header);

  const std::map<std::string, StoredTensor, std::less<>>& tensors() const noexcept { return tensors_; }
  const StoredTensor* find(std::string_view name) const noexcept;
  /// What to name in an error about a tensor that is nowhere: the one file, or the index.
  const std::string& path() const noexcept { return path_; }
  const std::vector<std::unique_ptr<const TensorFile>>& files() const noexcept { return files_; }

 private:
  void open_shards(const std::string& folder);
  void open_file(const std::string& path);

  std::string path_;
  std::vector<std::unique_ptr<const TensorFile>> files_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

}  // namespace conclave
