// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// In: a path. Out: its bytes, mapped read-only. Nothing is read before it is touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace conclave {

/// A regular file mapped into memory. If another process truncates the file while it is mapped, touching the lost
/// part is a SIGBUS: replace files by renaming (as write_safetensors does), never in place.
class MappedFile {
 public:
  /// Throws Error(io) with the reason of the operating system.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

/// Drops the pages that lie wholly inside [begin, begin + bytes) of a file mapping from this process's memory. Reading
/// them again brings them back from the file.
void release_mapped_pages(const void* begin, std::int64_t bytes) noexcept;

/// The whole of a small text file. Throws Error(io), or Error(bad_file) where it is larger than `limit` bytes.
std::string read_text_file(const std::string& path, std::int64_t limit);

}  // namespace conclave
