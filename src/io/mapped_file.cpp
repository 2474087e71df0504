// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Mapping by POSIX calls; the file descriptor is closed at once, as a mapping does not need it.
#include "io/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.hpp"

namespace conclave {
namespace {

/// Closes on every way out.
struct Descriptor {
  int value;
  ~Descriptor() {
    if (value >= 0) close(value);
  }
};

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  // Without O_NONBLOCK, opening a named pipe would wait for a writer for ever.
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.value < 0) fail(ErrorKind::io, "{}: cannot open: {}", path, std::strerror(errno));
  struct stat status {};
  if (fstat(file.value, &status) != 0) fail(ErrorKind::io, "{}: cannot stat: {}", path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) fail(ErrorKind::io, "{}: not a regular file", path);
  if (status.st_size == 0) return;
  const auto size = static_cast<std::size_t>(status.st_size);
  void* pages = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.value, 0);
  if (pages == MAP_FAILED) fail(ErrorKind::io, "{}: cannot map {} bytes: {}", path, size, std::strerror(errno));
  bytes_ = {static_cast<const std::byte*>(pages), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void release_mapped_pages(const void* begin, std::int64_t bytes) noexcept {
  const auto mask = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)) - 1;
  const auto first = (reinterpret_cast<std::uintptr_t>(begin) + mask) & ~mask;
  const auto last = (reinterpret_cast<std::uintptr_t>(begin) + static_cast<std::uintptr_t>(bytes)) & ~mask;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

std::string read_text_file(const std::string& path, std::int64_t limit) {
  const MappedFile file(path);
  const auto size = static_cast<std::int64_t>(file.bytes().size());
  if (size > limit) fail(ErrorKind::bad_file, "{}: given {} bytes, expected at most {}", path, size, limit);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace conclave
