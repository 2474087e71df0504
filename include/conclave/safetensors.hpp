// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Safetensors files: 8-byte little-endian header length, JSON header, data. Reading maps the file and checks everything
// before the first view is handed out; a malformed file is an Error naming file, tensor, value and what was expected.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "conclave/tensor.hpp"

namespace conclave {

struct NamedTensor {
  std::string name;
  ConstTensorView view;
};

/// One mapped file. Views point into the mapping and live as long as this object (or a copy of `mapping()`).
class SafetensorsFile {
 public:
  /// Throws Error(io) if it cannot be opened, Error(bad_file) if it is malformed.
  explicit SafetensorsFile(const std::string& path);
  /// Parses a file held in memory, for tests and fuzzing. The bytes are copied.
  static SafetensorsFile from_bytes(std::span<const std::byte> bytes, const std::string& name);

  const std::string& path() const noexcept { return path_; }
  /// In the order of their data.
  const std::vector<NamedTensor>& tensors() const noexcept { return tensors_; }
  const ConstTensorView* find(std::string_view name) const noexcept;
  /// Throws Error naming the file and the tensor.
  const ConstTensorView& get(std::string_view name) const;
  /// The strings of __metadata__.
  const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
  /// Keeps the mapping alive.
  const std::shared_ptr<const void>& mapping() const noexcept { return mapping_; }
  /// Tells the kernel that these mapped bytes are not needed any more; reading them again is legal but slow.
  void give_up(const void* begin, std::int64_t bytes) const noexcept;

 private:
  SafetensorsFile() = default;
  void parse(std::span<const std::byte> bytes);
  std::string path_;
  std::vector<NamedTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
  std::map<std::string, std::string> metadata_;
  std::shared_ptr<const void> mapping_;
  std::span<const std::byte> bytes_;
};

/// Writes beside `path` and renames, so that a reader sees the old file or the whole new one. Views must be contiguous.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace conclave
