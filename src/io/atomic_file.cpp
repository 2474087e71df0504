// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Create, write, rename; unlink on every other way out.
#include "io/atomic_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.hpp"

namespace conclave {

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  // O_EXCL with a counted name instead of mkstemp: the mode is then the user's umask, as for any file.
  constexpr int kAttempts = 1000;
  for (int i = 0; i < kAttempts && descriptor_ < 0; ++i) {
    temporary_ = fmt::format("{}.{}.{}.tmp", path, getpid(), i);
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno != EEXIST) break;
  }
  if (descriptor_ < 0) fail(ErrorKind::io, "{}: cannot create {}: {}", path, temporary_, std::strerror(errno));
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  // Linux writes at most 2^31 - 4096 bytes a call.
  constexpr std::size_t kChunk = std::size_t{1} << 30;
  while (!bytes.empty()) {
    const ssize_t done = ::write(descriptor_, bytes.data(), std::min(bytes.size(), kChunk));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) fail(ErrorKind::io, "{}: cannot write: {}", path_, std::strerror(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
}

void AtomicFile::commit() {
  const int descriptor = descriptor_;
  descriptor_ = -1;
  if (close(descriptor) != 0) fail(ErrorKind::io, "{}: cannot write: {}", path_, std::strerror(errno));
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0)
    fail(ErrorKind::io, "{}: cannot rename {}: {}", path_, temporary_, std::strerror(errno));
  temporary_.clear();
}

}  // namespace conclave
