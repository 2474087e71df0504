// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a path and chunks of bytes. Out: the whole file under that path, or the old one untouched and nothing left
// behind.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace conclave {

/// Writes to a new file in the same folder, so that the rename stays inside one file system and is atomic.
class AtomicFile {
 public:
  /// Throws Error(io) with the reason.
  explicit AtomicFile(const std::string& path);
  /// Removes the unfinished file unless commit() succeeded.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void commit();

 private:
  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
};

}  // namespace conclave
