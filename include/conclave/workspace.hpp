// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright the Conclave authors
//
// Scratch memory for run(). A Workspace owns one region per (micro-batch, lane); an Arena carves one region into
// tensors, and measures how large the region must be by doing the same carving without memory.
#pragma once

#include <cstdint>
#include <memory>
#include <source_location>
#include <span>
#include <vector>

#include "conclave/tensor.hpp"

namespace conclave {

/// Alignment of every tensor that an Arena hands out, as in the reference: a multiple of any vector or TMA need.
inline constexpr std::int64_t kWorkspaceAlignment = 256;

/// Which region: sibling micro-batches and concurrent streams ("lanes") must not share one.
struct WorkspaceSlot {
  int micro_batch = 0;
  int lane = 0;
  bool operator==(const WorkspaceSlot&) const = default;
};

/// Bump allocation inside one region. Without a region it only counts, so plan() and run() share one layout function.
class Arena {
 public:
  /// Counts only: take() returns views whose data is null.
  static Arena measuring(Device device = {}) { return Arena({}, device, true); }
  Arena(std::span<std::byte> region, Device device) : Arena(region, device, false) {}

  /// A contiguous tensor. Throws Error(out_of_memory) with the sizes if the region is too small.
  TensorView take(DType dtype, std::span<const std::int64_t> shape);
  TensorView take(DType dtype, std::initializer_list<std::int64_t> shape) {
    return take(dtype, std::span<const std::int64_t>(shape.begin(), shape.size()));
  }

  /// Bytes handed out so far, alignment included.
  std::int64_t used() const noexcept { return used_; }

  /// Everything taken after mark() is handed out again after release(mark): how lifetimes overlap on purpose.
  std::int64_t mark() const noexcept { return used_; }
  void release(std::int64_t mark) noexcept { used_ = mark; }
  /// The largest used() there has been: what a region must hold.
  std::int64_t peak() const noexcept { return peak_; }

 private:
  Arena(std::span<std::byte> region, Device device, bool measuring)
      : region_(region), device_(device), measuring_(measuring) {}
  std::span<std::byte> region_;
  Device device_;
  bool measuring_;
  std::int64_t used_ = 0;
  std::int64_t peak_ = 0;
};

/// Regions that grow on demand until locked. Growing one slot never moves another: a sibling micro-batch may hold
/// views into its own. Not thread-safe; one owner.
class Workspace {
 public:
  explicit Workspace(Device device = {});
  ~Workspace();
  Workspace(Workspace&&) noexcept;
  Workspace& operator=(Workspace&&) noexcept;

  /// At least `bytes` bytes for `slot`, aligned to kWorkspaceAlignment. Contents are undefined.
  /// Throws Error(out_of_memory) naming the caller and both sizes if it would have to grow while locked.
  std::span<std::byte> region(WorkspaceSlot slot, std::int64_t bytes,
                              std::source_location caller = std::source_location::current());

  void lock() noexcept { locked_ = true; }
  void unlock() noexcept { locked_ = false; }
  bool locked() const noexcept { return locked_; }
  Device device() const noexcept { return device_; }
  /// Bytes held over all slots.
  std::int64_t bytes() const noexcept;
  /// Fills everything held with 0xFF (NaN in every float type): a test that a part writes before it reads.
  void poison() noexcept;

 private:
  struct Region;
  Device device_;
  bool locked_ = false;
  std::vector<Region> regions_;
};

}  // namespace conclave
