// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Arena: sizes or memory -> aligned tensors. Workspace: one growing region for each (micro-batch, lane).
#include "conclave/workspace.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/device_memory.hpp"
#include "base/error.hpp"

namespace conclave {

TensorView Arena::take(DType dtype, std::span<const std::int64_t> shape) {
  TensorView view(nullptr, dtype, shape, device_);
  const std::int64_t bytes = view.bytes();
  const std::int64_t rounded = (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  if (!measuring_) {
    const auto size = static_cast<std::int64_t>(region_.size());
    if (used_ + rounded > size)
      fail(ErrorKind::out_of_memory, "workspace: {} needs {} bytes at offset {}, the region has {}", to_string(view),
           rounded, used_, size);
    view.data = region_.data() + used_;
  }
  used_ += rounded;
  peak_ = std::max(peak_, used_);
  return view;
}

struct Workspace::Region {
  struct Free {
    Device device;
    void operator()(std::byte* p) const noexcept {
      if (device.type == DeviceType::cpu) return ::operator delete (p, std::align_val_t{kWorkspaceAlignment});
      device_memory::release(device, p);
    }
  };
  WorkspaceSlot slot;
  std::int64_t bytes = 0;
  std::unique_ptr<std::byte, Free> memory;
};

namespace {

std::byte* allocate(Device device, std::int64_t bytes) {
  if (device.type != DeviceType::cpu) return device_memory::allocate(device, bytes);
  return static_cast<std::byte*>(
      ::operator new (static_cast<std::size_t>(bytes), std::align_val_t{kWorkspaceAlignment}));
}

}  // namespace

Workspace::Workspace(Device device) : device_(device) {}
Workspace::~Workspace() = default;
Workspace::Workspace(Workspace&&) noexcept = default;
Workspace& Workspace::operator=(Workspace&&) noexcept = default;

std::span<std::byte> Workspace::region(WorkspaceSlot slot, std::int64_t bytes, std::source_location caller) {
  require(bytes >= 0, "workspace: {} bytes, expected 0 or more", bytes);
  auto found = std::find_if(regions_.begin(), regions_.end(), [&](const Region& r) { return r.slot == slot; });
  const std::int64_t held = found == regions_.end() ? 0 : found->bytes;
  if (bytes > held) {
    if (locked_)
      fail(ErrorKind::out_of_memory,
           "workspace: locked, but {}:{} asks for {} bytes in slot (micro-batch {}, lane {}) that holds {}",
           caller.file_name(), caller.line(), bytes, slot.micro_batch, slot.lane, held);
    if (found == regions_.end()) found = regions_.insert(regions_.end(), Region{slot, 0, {nullptr, {device_}}});
    found->memory.reset();  // The old region goes first: the peak is the new size, not the sum.
    found->bytes = 0;
    found->memory.reset(allocate(device_, bytes));
    found->bytes = bytes;
  }
  if (bytes == 0) return {};
  return {found->memory.get(), static_cast<std::size_t>(found->bytes)};
}

std::int64_t Workspace::bytes() const noexcept {
  std::int64_t sum = 0;
  for (const Region& r : regions_) sum += r.bytes;
  return sum;
}

void Workspace::poison() noexcept {
  for (const Region& r : regions_)
    if (r.bytes > 0 && device_.type == DeviceType::cpu)
      std::memset(r.memory.get(), 0xFF, static_cast<std::size_t>(r.bytes));
    else if (r.bytes > 0)
      device_memory::fill(device_, r.memory.get(), 0xFF, r.bytes);
}

}  // namespace conclave
