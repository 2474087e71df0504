// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Bytes -> anonymous pages from the operating system, so that single pages can go back to it (discard); or memory of a
// GPU, which only goes back as a whole.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "base/device_memory.hpp"
#include "base/error.hpp"
#include "conclave/tensor.hpp"

namespace conclave {
namespace {

std::uintptr_t page_size() noexcept {
  static const auto size = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  return size;
}

}  // namespace

Storage::Storage(std::int64_t bytes, Device device) : bytes_(bytes), device_(device) {
  require(bytes >= 0, "storage: {} bytes, expected 0 or more", bytes);
  if (bytes == 0) return;
  if (device.type != DeviceType::cpu) {
    data_ = device_memory::allocate(device, bytes);
    return;
  }
  void* pages =
      mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) fail(ErrorKind::out_of_memory, "storage: cannot allocate {} bytes", bytes);
  // Fewer TLB misses where the kernel has huge pages to give; a refusal changes nothing. Small tensors would only
  // waste memory.
  constexpr std::int64_t kHugeFrom = std::int64_t{8} << 20;
  if (bytes >= kHugeFrom) madvise(pages, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(pages);
}

Storage::~Storage() {
  if (device_.type != DeviceType::cpu)
    device_memory::release(device_, data_);
  else if (data_ != nullptr)
    munmap(data_, static_cast<std::size_t>(bytes_));
}

void Storage::discard(const void* begin, std::int64_t bytes) noexcept {
  const auto base = reinterpret_cast<std::uintptr_t>(data_);
  auto first = reinterpret_cast<std::uintptr_t>(begin);
  auto last = first + static_cast<std::uintptr_t>(bytes < 0 ? 0 : bytes);
  const std::uintptr_t end = base + static_cast<std::uintptr_t>(bytes_);
  if (data_ == nullptr || device_.type != DeviceType::cpu || last <= base || first >= end) return;
  const std::uintptr_t mask = page_size() - 1;
  first = (std::max(first, base) + mask) & ~mask;
  // The last page of the storage is wholly ours even where the tensor ends inside it.
  last = last >= end ? (end + mask) & ~mask : last & ~mask;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace conclave
